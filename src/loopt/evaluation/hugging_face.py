"""Hugging Face models as language models to evaluate, by name on the hub or from a directory.

Rows are padded on their left: answers are then generated, and scored, at the end of every row.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopt.errors import InputError, MissingPackageError
from loopt.evaluation.language_model import LanguageModel, Likelihood, Prompt, Window
from loopt.scoring.precision import computes_in_bfloat16

TOKENS_AT_A_TIME = {"cpu": 2**12, "cuda": 2**16, "mps": 2**14}
"""How many tokens, padding included, a batch has at most."""
LONGEST = 2048
"""Of a model that does not say how many tokens it reads."""


class HuggingFaceModel(LanguageModel):
    """A causal language model of the transformers package. A document begins after its bos token, or where it has none
    after its eos token. Its own settings for sampling are not used: answers are greedy."""

    def __init__(self, name: str, device: torch.device, *, trust_remote_code: bool = False) -> None:
        transformers = _transformers()
        dtype = torch.bfloat16 if computes_in_bfloat16(device) else torch.float32
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
            self.model = transformers.AutoModelForCausalLM.from_pretrained(
                name, dtype=dtype, trust_remote_code=trust_remote_code
            )
        except (
            OSError,
            ValueError,
            KeyError,
            ImportError,
            RuntimeError,
        ) as error:  # absent, damaged, code
            first = str(error).strip().partition("\n")[0]
            raise InputError(f"hf={name[:200]}: cannot be loaded: {first[:300]}") from None
        self.model.to(device).eval()
        self.device, self.max_len, self.batch = device, self._longest(), 128 if device.type == "cuda" else 16
        ends = [token for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id) if token is not None]
        if not ends:
            raise InputError(f"hf={name[:200]}: its tokenizer has neither a bos nor an eos token to begin a text with")
        self.start, self._end = ends[0], ends[-1]
        self.model.generation_config = transformers.GenerationConfig(
            do_sample=False, eos_token_id=self._end, pad_token_id=self._end
        )
        self._takes_logits_to_keep = "logits_to_keep" in inspect.signature(self.model.forward).parameters

    def _longest(self) -> int:
        config = self.model.config
        for field in ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length"):
            if isinstance(getattr(config, field, None), int):
                return int(getattr(config, field))
        return min(self.tokenizer.model_max_length, LONGEST)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        found: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return found

    def encode_answers(self, answers: Sequence[str]) -> list[list[int]]:
        """Encodes answers behind a colon, as a prompt ends: some tokenizers begin every text with a space of their own,
        which an answer by itself would then have twice."""
        (colon,) = self.encode([":"])
        together = self.encode([":" + answer for answer in answers])
        return [tokens[len(colon) :] for tokens in together]

    def rows_to_complete(self, length: int) -> int:
        return max(1, min(self.batch, TOKENS_AT_A_TIME[self.device.type] // length))

    def rows_to_score(self, length: int) -> int:
        return self.rows_to_complete(length)

    @torch.inference_mode()
    def complete_batch(self, prompts: Sequence[Prompt], length: int) -> list[str]:
        ids, mask = self._padded([prompt.tokens for prompt in prompts])  # [B, T] each
        limits = [min(p.max_new_tokens, self.max_len - len(p.tokens) + 1) for p in prompts]
        stopping = _Stopping(self, prompts, limits, ids.shape[1])
        self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max(limits),
            stopping_criteria=_transformers().StoppingCriteriaList([stopping]),
        )
        return stopping.texts

    def answer(self, tokens: list[int], stop: Sequence[str]) -> tuple[str, bool]:
        """Returns the text of generated tokens up to what stops it, and whether something does."""
        stopped = self._end in tokens
        text: str = self.tokenizer.decode(tokens[: tokens.index(self._end)] if stopped else tokens)
        if not text.startswith(" ") and tokens and self._begins_with_space(tokens[0]):
            text = " " + text  # which decoding drops at the beginning of a text
        found = [at for at in (text.find(one) for one in stop) if at >= 0]
        return (text[: min(found)], True) if found else (text, stopped)

    def _begins_with_space(self, token: int) -> bool:
        return str(self.tokenizer.convert_ids_to_tokens(token)).startswith("▁")

    @torch.inference_mode()
    def score_batch(self, windows: Sequence[Window]) -> list[Likelihood]:
        ids, mask = self._padded([window.tokens[:-1] for window in windows])  # [B, T] each
        most = max(window.scored for window in windows)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        last = {"logits_to_keep": most} if self._takes_logits_to_keep else {}
        logits = self.model(input_ids=ids, attention_mask=mask, position_ids=positions, **last).logits[:, -most:]
        scores: Tensor = logits.float().log_softmax(2)  # [B, most, V]
        found = []
        for row, window in zip(scores, windows, strict=True):
            targets = torch.tensor(window.tokens[len(window.tokens) - window.scored :], device=self.device)
            of_window = row[most - window.scored :]  # [scored, V]
            total = of_window.gather(1, targets[:, None]).double().sum()
            found.append(Likelihood(float(total), bool((of_window.argmax(1) == targets).all())))
        return found

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Returns rows padded on their left, and which of their tokens are there, [B, T] each."""
        longest = max(len(row) for row in rows)
        ids = torch.full((len(rows), longest), self._end, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, longest - len(row) :] = torch.tensor(row)
            mask[number, longest - len(row) :] = 1
        return ids.to(self.device), mask.to(self.device)


class _Stopping:
    """Tells ``generate`` which rows are finished: at their stop texts, the end of a text, or their own limit."""

    def __init__(
        self, model: HuggingFaceModel, prompts: Sequence[Prompt], limits: Sequence[int], prompt_length: int
    ) -> None:
        self._model, self._prompts, self._limits, self._prompt_length = model, prompts, limits, prompt_length
        self.texts = [""] * len(prompts)
        self._finished = [False] * len(prompts)

    def __call__(self, ids: Tensor, scores: Any, **_: Any) -> Tensor:
        new = ids[:, self._prompt_length :].tolist()
        for row, tokens in enumerate(new):
            if not self._finished[row]:
                text, stopped = self._model.answer(tokens, self._prompts[row].stop)
                self.texts[row], self._finished[row] = text, stopped or len(tokens) >= self._limits[row]
        return torch.tensor(self._finished, device=ids.device)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingPackageError("--hf needs transformers; install it with: pip install 'loopt[hf]'") from None
    return transformers
