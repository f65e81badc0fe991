"""Our models as language models to evaluate: cached, batched decoding, and likelihoods by the scoring room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

from loopt.errors import InputError
from loopt.evaluation.language_model import LanguageModel, Likelihood, Prompt, Window
from loopt.generation import CachePolicy, Engine, Settings, cache_bytes
from loopt.generation.row import Row
from loopt.generation.row_text import RowText
from loopt.generation.sampling import Sampling
from loopt.model import LoopedTransformer
from loopt.scoring import read_out
from loopt.scoring.precision import autocast, bfloat16_copy, computes_in_bfloat16, scoring_batch
from loopt.source import Codec

BUCKETS = 4
"""Engines have a quarter, half, three quarters or all of max_len: each captures its graphs once."""
ENGINES = 8
"""How many engines are kept for prompts to come,"""
SHARE_OF_MEMORY = 16
"""each with a cache of at most this part of a GPU's memory."""
CACHE_BYTES = 2**28
"""The largest cache elsewhere."""
PADDED_TO = 64
"""On CUDA windows are padded to a multiple of so many tokens, so that few shapes occur."""


class LoopedModel(LanguageModel):
    """A ``LoopedTransformer`` with its codec, run with any number of loops. On CUDA it generates with weights in
    bfloat16 and scores under autocast, as language models are run elsewhere."""

    def __init__(self, model: LoopedTransformer, codec: Codec, loops: int | None = None) -> None:
        if codec.end is None:
            raise InputError("model: it has no token that texts begin after; allowed is a language model's run")
        if codec.vocab_size > model.config.vocab_size:
            words = model.config.vocab_size
            raise InputError(f"vocabulary: the tokenizer has {codec.vocab_size} tokens; the model reads {words}")
        self.model, self.codec, self.loops, self.plan = model, codec, loops, model.plan_with(loops)
        self.device = model.token_embedding.weight.device
        self.max_len, self.start = model.config.max_len, codec.end
        self.batch = 256 if self.device.type == "cuda" else 32
        self.sampling = Sampling()
        in_bfloat16 = computes_in_bfloat16(self.device)
        self._generating = bfloat16_copy(model) if in_bfloat16 else model
        self._engines: OrderedDict[tuple[int, int, Sampling], Engine] = OrderedDict()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.codec.encode_all(texts)

    def encode_answers(self, answers: Sequence[str]) -> list[list[int]]:
        """Encodes answers by themselves. Byte-level BPE never merges across the space that begins a word, so a prompt
        followed by a space and a word has the tokens of the prompt, then those of the word with its space."""
        return self.encode(answers)

    def rows_to_complete(self, length: int) -> int:
        number = self._generating.token_embedding.weight.dtype.itemsize
        a_row = cache_bytes(self.model.config, self.plan, 1, self._bucket(length), CachePolicy(), number)
        room = CACHE_BYTES
        if self.device.type == "cuda":
            room = torch.cuda.get_device_properties(self.device).total_memory // SHARE_OF_MEMORY
        return max(1, min(self.batch, room // a_row))

    def complete_batch(self, prompts: Sequence[Prompt], length: int) -> list[str]:
        engine = self._engine(len(prompts), self._bucket(length))
        rows = [
            Row(
                list(prompt.tokens),
                prompt.key,
                min(prompt.max_new_tokens, self.max_len - len(prompt.tokens) + 1),
                frozenset([self.start]),
                RowText(self.codec, prompt.stop),
            )
            for prompt in prompts
        ]
        for _ in engine.run(rows):
            pass
        return [row.completion().text for row in rows]

    def _bucket(self, length: int) -> int:
        step = -(-self.max_len // BUCKETS)
        return min(-(-length // step) * step, self.max_len)

    def _engine(self, count: int, length: int) -> Engine:
        """Returns an engine for ``count`` rows. On CUDA it may have more, a power of 2, so that few are made."""
        rows = count
        if self.device.type == "cuda":
            rows = min(2 ** (count - 1).bit_length(), self.rows_to_complete(length))
        key = (rows, length, self.sampling)
        if key not in self._engines:
            settings = Settings(**vars(self.sampling), loops=self.loops, batch_size=rows)
            self._engines[key] = Engine(self._generating, rows, length, settings, self.codec)
            if len(self._engines) > ENGINES:
                self._engines.popitem(last=False)
        self._engines.move_to_end(key)
        return self._engines[key]

    def rows_to_score(self, length: int) -> int:
        return scoring_batch(self.model.config, length, self.device)

    @torch.no_grad()
    def score_batch(self, windows: Sequence[Window]) -> list[Likelihood]:
        longest = max(len(window.tokens) - 1 for window in windows)
        if self.device.type == "cuda":
            longest = min(-(-longest // PADDED_TO) * PADDED_TO, self.max_len)
        ids = torch.zeros(len(windows), longest, dtype=torch.int64)  # padded at the end, where no token looks
        for row, window in enumerate(windows):
            ids[row, : len(window.tokens) - 1] = torch.tensor(window.tokens[:-1])
        places = [(r, len(w.tokens) - 1 - w.scored + i) for r, w in enumerate(windows) for i in range(w.scored)]
        row_of, position = torch.tensor(places, device=self.device).unbind(1)  # [M] each: the M scored tokens
        scored = [token for window in windows for token in window.tokens[len(window.tokens) - window.scored :]]
        targets = torch.tensor(scored, device=self.device)
        with autocast(self.device):
            x = self.model.iterate(self.model.embed(ids.to(self.device)), self.loops)  # [B, T, D]
            reading = read_out(self.model, x[row_of, position], targets=targets)
        assert reading.target_log_probability is not None
        found, right = reading.target_log_probability.double().cpu(), (reading.tokens[:, 0] == targets).cpu()
        sizes = [window.scored for window in windows]
        return [
            Likelihood(float(some.sum()), bool(all_right.all()))
            for some, all_right in zip(found.split(sizes), right.split(sizes), strict=True)
        ]
