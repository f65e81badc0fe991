"""Our runs as a model of lm-evaluation-harness, so that any of its tasks runs on them.

The harness finds models in a table of its own and looks for no others, so ours is registered in the process that calls
it: ``loopt lm-eval`` does so. Importing this file needs lm_eval.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from loopt.devices import pick_device
from loopt.errors import InputError
from loopt.evaluation.language_model import Continuation, Prompt
from loopt.evaluation.looped import LoopedModel
from loopt.generation.sampling import Sampling
from loopt.runs import Run

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""What a task may say about how tokens are chosen."""
MAX_NEW_TOKENS = 256
"""Of a task that does not say, as the harness's own models have it."""


@register_model("loopt")
class HarnessModel(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """A run with the interface of the harness: likelihoods by the scoring room, generation cached and in batches.

    ``run``, ``loops``, ``checkpoint`` and ``device`` are what ``--model_args`` may give. How much is done at a time
    follows from the device, so that the sizes of batches, which the harness always gives, are not used."""

    def __init__(
        self,
        run: str,
        loops: int | None = None,
        checkpoint: Literal["best", "last"] | int = "best",
        device: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        opened = Run.load(str(run))
        # The harness's command line says cuda:0 where nobody names a device, also on machines that have none.
        absent = device is None or (device.startswith("cuda") and not torch.cuda.is_available())
        self._device = pick_device("auto") if absent else torch.device(str(device))
        model = opened.load_model(checkpoint).to(self._device)
        self.model = LoopedModel(model, opened.codec, loops)
        self._name = str(run)

    @property
    def eot_token_id(self) -> int:
        return self.model.start

    @property
    def tokenizer_name(self) -> str:
        return self._name

    @property
    def max_length(self) -> int:
        return self.model.max_len

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return self.model.encode([string])[0]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Returns the log-likelihood of each continuation. A context is the beginning of a document, as in training."""
        encoded = []
        for request in requests:
            context, continuation = request.args
            pair = self._encode_pair(context, continuation) if context else ([], self.tok_encode(continuation))
            encoded.append(((context, continuation), [self.prefix_token_id, *pair[0]], pair[1]))
        return self._loglikelihood_tokens(encoded, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        order = sorted(range(len(requests)), key=lambda number: -len(requests[number][1]) - len(requests[number][2]))
        found: dict[int, tuple[float, bool]] = {}
        for numbers in self._batches(order, "log-likelihoods", disable_tqdm):
            asked = [Continuation(requests[number][1], requests[number][2]) for number in numbers]
            for number, one in zip(numbers, self.model.likelihoods(asked), strict=True):
                found[number] = (one.log_probability, one.greedy)
                self.cache_hook.add_partial("loglikelihood", requests[number][0], found[number])
        return [found[number] for number in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-likelihood of each text, read in the windows that the harness prescribes."""
        owners: list[int] = []
        windows: list[tuple[tuple[str, str], list[int], list[int]]] = []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            for window in get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1):
                owners.append(number)
                windows.append((("", request.args[0]), *make_disjoint_window(window)))
        found = [0.0] * len(requests)
        asked = [Continuation(context, tokens) for _, context, tokens in windows]
        for batch in self._batches(list(range(len(asked))), "rolling log-likelihoods", disable_tqdm):
            for number, one in zip(batch, self.model.likelihoods([asked[n] for n in batch]), strict=True):
                found[owners[number]] += one.log_probability
        for request, total in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns what the model says after each context, up to the texts that end an answer. A context that leaves no
        room for the answer is cut on its left."""
        settings = [_Generation.of(request.args[1]) for request in requests]
        contexts = self.model.encode([request.args[0] for request in requests])
        prompts = [self._prompt(*one, number) for number, one in enumerate(zip(contexts, settings, strict=True))]

        def kind(number: int) -> tuple[str, int]:
            return repr(settings[number].sampling), -len(prompts[number].tokens)

        found: dict[int, str] = {}
        for _, alike in groupby(sorted(range(len(requests)), key=kind), lambda number: kind(number)[0]):
            order = list(alike)
            self.model.sampling = settings[order[0]].sampling
            for numbers in self._batches(order, "generating", disable_tqdm):
                for number, text in zip(numbers, self.model.complete([prompts[n] for n in numbers]), strict=True):
                    found[number] = text
                    self.cache_hook.add_partial("generate_until", requests[number].args, text)
        return [found[number] for number in range(len(requests))]

    def _prompt(self, context: list[int], settings: _Generation, key: int) -> Prompt:
        room = max(self.max_length - settings.max_new_tokens, self.max_length // 2)
        kept = context[max(0, len(context) - room + 1) :] if room > 1 else []
        return Prompt([self.prefix_token_id, *kept], settings.stop, settings.max_new_tokens, key)

    def _batches(self, order: Sequence[int], what: str, quiet: bool) -> Iterator[list[int]]:
        """Yields numbers batch by batch, and shows how far it is."""
        with tqdm(total=len(order), desc=what, disable=quiet) as bar:
            for first in range(0, len(order), self.model.batch):
                numbers = list(order[first : first + self.model.batch])
                yield numbers
                bar.update(len(numbers))


@dataclass(frozen=True)
class _Generation:
    """How a task wants answers to be generated."""

    stop: tuple[str, ...]
    max_new_tokens: int
    sampling: Sampling

    @classmethod
    def of(cls, given: dict[str, Any]) -> _Generation:
        settings: dict[str, Any] = dict(normalize_gen_kwargs(given, MAX_NEW_TOKENS))
        stop, limit, _ = settings.pop("until"), settings.pop("max_gen_toks"), settings.pop("do_sample", None)
        for name in settings:
            if name not in SAMPLING:
                allowed = ", ".join(("until", "max_gen_toks", "do_sample", *SAMPLING))
                raise InputError(f"gen_kwargs: {name} is not known; allowed are {allowed}")
        sampling = Sampling(**settings)
        sampling.check_values()
        return cls(tuple(text for text in stop if text), limit, sampling)
