"""Parity: whether the number of ones is odd, a task that takes one step for each bit."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopt.tasks import IGNORE, Batch, Stream, Task, register


@register
@dataclass(frozen=True)
class Parity(Task):
    name = "parity"
    vocabulary = ("0", "1")

    n: int = 16
    """How many bits an example has."""

    @property
    def length(self) -> int:
        return self.n

    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        bits = stream.integers(indices, self.n, 2, "bits")  # [batch, n], the model's input
        parity = bits.cumsum(1) % 2  # a label for every position: the parity so far
        answers = torch.full_like(parity, IGNORE)
        answers[:, -1] = parity[:, -1]  # what exact match scores
        return Batch(tokens=bits, targets=parity, answers=answers)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        return [tokens[: end + 1].count(1) % 2 for end in range(len(tokens))]

    def render(self, tokens: Sequence[int]) -> str:
        ones = list(tokens).count(1)
        return f"{''.join(map(str, tokens))} has {ones} ones: answer {ones % 2}"
