"""Choosing the next token from logits: greedily, or at random with a seed for each row.

What a row draws depends on its own key and on how many tokens it has drawn, so neighbors in the batch change nothing.
Nothing here waits for the device, so that it can be captured in a CUDA graph together with the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.kernels import choose_kernel
from loopt.random_bits import RowStream
from loopt.scoring.precision import exact_type

BROKEN = -1
"""Stands for the token of a row whose logits are not numbers."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float = 0.0
    """0: always the likeliest token. 1: by the model's own probabilities; lower is more cautious."""
    top_k: int | None = None
    """Choose among so many of the likeliest tokens only."""
    top_p: float = 1.0
    """Choose among the likeliest tokens whose probabilities add up to this."""
    min_p: float = 0.0
    """Choose among tokens at least this share as likely as the likeliest."""
    repetition_penalty: float = 1.0
    """Make tokens that the prompt or the text so far has less likely: their logits are divided by this if positive, and
    multiplied if negative."""

    @property
    def filters(self) -> bool:
        """Tells whether some tokens are not to be chosen from."""
        return self.temperature > 0 and (self.top_k is not None or self.top_p < 1 or self.min_p > 0)

    def check_values(self) -> None:
        """Raises an InputError for a value that makes no sense."""
        finite = math.isfinite(self.temperature) and self.temperature >= 0
        require(finite, "temperature", self.temperature, "0 (greedy) or more", InputError)
        require(self.top_k is None or self.top_k >= 1, "top_k", self.top_k, "1 or more, or none", InputError)
        require(0 < self.top_p <= 1, "top_p", self.top_p, "more than 0, at most 1", InputError)
        require(0 <= self.min_p <= 1, "min_p", self.min_p, "0 to 1", InputError)
        penalty = self.repetition_penalty
        sensible = math.isfinite(penalty) and penalty > 0
        require(sensible, "repetition_penalty", penalty, "more than 0; 1 is none", InputError)


class Sampler:
    """Chooses tokens for a batch of rows, each with a key of its own."""

    def __init__(self, sampling: Sampling, rows: int, vocab_size: int, allowed: int, device: torch.device) -> None:
        self.sampling, self.allowed = sampling, allowed
        self.keys = torch.zeros(rows, dtype=torch.int64, device=device)
        self.drawn = torch.zeros(rows, dtype=torch.int64, device=device)  # tokens that each row has chosen
        repeats = sampling.repetition_penalty != 1.0
        self.seen = torch.zeros(rows, vocab_size, dtype=torch.bool, device=device) if repeats else None

    def begin(self, keys: Sequence[int], prompts: Sequence[Sequence[int]]) -> None:
        """Starts new rows, with a 64-bit key for each and its prompt."""
        self.keys.copy_(torch.tensor(keys, dtype=torch.int64))
        self.drawn.zero_()
        if self.seen is not None:
            self.seen.zero_()
            for row, prompt in enumerate(prompts):
                self.seen[row, torch.tensor(prompt, device=self.seen.device)] = True

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Chooses a token for each row of logits [B, V], in float32 or better, and returns them with their
        log-probabilities under the model as it is: [B] each. A row whose logits are not numbers gets BROKEN."""
        logits = logits[:, : self.allowed]
        kernel = choose_kernel(logits)
        if kernel is not None and self.seen is None and not self.sampling.filters:
            return kernel(logits, self.keys, self.drawn, self.sampling.temperature)
        scores = self._penalized(logits)
        highest, tokens = scores.max(1)  # the highest of a row with one that is not a number is not one either
        broken = highest.isnan()
        if self.sampling.temperature > 0:
            tokens = self._draw(torch.where(broken[:, None], 0.0, scores))
        log_probabilities = logits.log_softmax(1).gather(1, tokens[:, None])[:, 0]
        if self.seen is not None:
            self.seen.scatter_(1, tokens[:, None], True)
        self.drawn += 1
        return torch.where(broken, BROKEN, tokens), log_probabilities

    def _penalized(self, logits: Tensor) -> Tensor:
        if self.seen is None:
            return logits
        penalty = self.sampling.repetition_penalty
        penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
        return torch.where(self.seen[:, : self.allowed], penalized, logits)

    def _draw(self, scores: Tensor) -> Tensor:
        probabilities = filtered(scores / self.sampling.temperature, self.sampling).softmax(1)
        reached = probabilities.cumsum(1, dtype=exact_type(scores.device))
        share = RowStream(self.keys).uniform(self.drawn, "token").to(reached.dtype)  # [B] in [0, 1)
        # The last entry is the sum, which rounding may leave off 1; the first to exceed a share of it is possible.
        return (reached <= share[:, None] * reached[:, -1:]).sum(1).clamp(max=scores.shape[1] - 1)


def filtered(scores: Tensor, sampling: Sampling) -> Tensor:
    """Returns scores [B, V] with -inf for the tokens that are not to be chosen; the likeliest always may be."""
    if sampling.top_k is not None and sampling.top_k < scores.shape[1]:
        least = scores.topk(sampling.top_k, dim=1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    if sampling.top_p < 1:
        ordered, order = scores.sort(dim=1, descending=True)
        probabilities = ordered.softmax(1)
        enough = probabilities.cumsum(1) - probabilities >= sampling.top_p  # before this one already
        scores = scores.masked_fill(torch.zeros_like(enough).scatter(1, order, enough), -math.inf)
    if sampling.min_p > 0:
        least = scores.amax(1, keepdim=True) + math.log(sampling.min_p)
        scores = scores.masked_fill(scores < least, -math.inf)
    return scores
