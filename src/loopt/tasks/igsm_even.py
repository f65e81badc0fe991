"""The law "even" of i-GSM: every number of needed statements equally likely, always as many statements.

It is our own, from before the cited generator was read. docs/igsm.md says how a problem is drawn, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from loopt.random_bits import Stream
from loopt.tasks.igsm_problem import Problem, ends_of, longest_text, signs

EDGES = 48
"""The parameters there can be: 12 entities have a level below them, with four entities each."""
MOST_OPERANDS = 3
ROOM = 14
"""Tokens set aside for a statement. Few problems use more on average, and those that do lose their last distractors."""


@dataclass(frozen=True)
class EvenLaw:
    statements: int
    """How many parameters are defined."""
    needed: tuple[int, int]
    """The fewest and the most that the query needs."""

    @property
    def room(self) -> int:
        """Returns tokens for all that a query can need, and for all distractors in all but a few problems in 1000."""
        most_room = max(ROOM * self.statements, longest_text(self.needed[1]))
        return min(most_room, longest_text(self.statements))

    @property
    def difficulties(self) -> dict[str, EvenLaw]:
        fewest, most = self.needed
        return {f"{m} needed": replace(self, needed=(m, m)) for m in range(fewest, most + 1)}

    def draw(self, indices: Tensor, stream: Stream, modulus: int) -> Problem:
        n = self.statements
        fewest, most = self.needed
        needed = fewest + stream.integers(indices, 1, most - fewest + 1, "needed")  # [batch, 1]
        edges = stream.sort_keys(indices, EDGES, "edges").topk(n, dim=1, largest=False).indices  # [batch, n]
        count, operands = self._dependencies(indices, needed, stream)  # [batch, n] and [batch, n, 3]
        sign = signs(count, stream.integers(indices, n, 2, "minus"), MOST_OPERANDS)  # [batch, n, 3]

        role = stream.integers(indices, n, 6, "constant role")  # [batch, n]
        added, factor = (count > 0) & (role == 0), (count > 0) & (role == 1)  # [batch, n]
        factors = 2 + stream.integers(indices, n, modulus - 2, "factors")  # [batch, n]; 1 * x would be x
        times = self._times_used(needed, operands, sign * torch.where(factor, factors, 1)[:, :, None], modulus)
        # If no constant matters, as in x - x and 7 * x, the answer is 0. Then the first parameter that does matter gets
        # a constant to add. So every answer is equally likely, whatever the shape of the problem.
        matters = times != 0  # [batch, n]
        always_zero = ~(matters & ((count == 0) | added)).any(1, keepdim=True)  # [batch, 1]
        saved = always_zero & matters & (matters.cumsum(1) == 1)  # [batch, n]
        added, factor = added | saved, factor & ~saved

        constant = stream.integers(indices, n, modulus, "constants")  # [batch, n]
        constant = torch.where(factor, factors, torch.where((count == 0) | added, constant, 0))
        statements = torch.full_like(needed, n)
        return Problem(*ends_of(edges), statements, needed, needed - 1, count, operands, sign, added, factor, constant)

    def _dependencies(self, indices: Tensor, needed: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
        """Draws how many parameters each one uses, [batch, n], and which, [batch, n, 3]."""
        n = self.statements
        i = torch.arange(n, device=indices.device)  # [n]

        # A needed parameter may use all that come before it; so may half of the distractors, and the rest of them use
        # nothing but one another.
        apart = (i >= needed) & (stream.integers(indices, n, 2, "apart") == 1)  # [batch, n]
        may_use = (i[:, None] > i) & (~apart[:, :, None] | apart[:, None, :])  # [batch, n, n]

        # Whatever is needed is used by the next needed one, or one time in four by the one after that.
        skips = (i + 2 < needed) & (stream.integers(indices, n, 4, "skips") == 0)  # [batch, n]
        further_on = i[:, None] - i  # [n, n]
        must_use = (i[:, None] < needed[:, :, None]) & (further_on == 1 + skips[:, None, :].long())  # [batch, n, n]

        wanted = stream.integers(indices, n, 5, "operands wanted").clamp(max=MOST_OPERANDS)  # [batch, n]
        count = wanted.maximum(must_use.sum(2)).minimum(may_use.sum(2))  # [batch, n]
        keys = stream.sort_keys(indices, n * n, "operands").view(len(indices), n, n)
        keys = torch.where(may_use, keys, torch.iinfo(torch.int64).max)
        keys = torch.where(must_use, -1 - i, keys)
        operands = keys.topk(MOST_OPERANDS, dim=2, largest=False).indices  # [batch, n, 3]
        return count, _shuffled(operands, count, stream.integers(indices, n, 6, "operand order"))

    def _times_used(self, needed: Tensor, operands: Tensor, factors: Tensor, modulus: int) -> Tensor:
        """Returns by how much the answer changes if a parameter changes by 1, [batch, n]: passed on from the query to
        the parameters that it uses, times ``factors``, [batch, n, 3], and so on."""
        times = (torch.arange(self.statements, device=needed.device) == needed - 1).long()  # [batch, n]
        for i in reversed(range(self.needed[1])):
            times = times.scatter_add(1, operands[:, i], times[:, i, None] * factors[:, i]) % modulus
        return times


def _shuffled(operands: Tensor, count: Tensor, which: Tensor) -> Tensor:
    """Returns operands, [batch, n, 3], the first ``count`` of each three in the order number ``which``, 0 to 5."""
    a, b, c = operands.unbind(2)
    turned = (count >= 2) & (which % 2 == 1)
    a, b = torch.where(turned, b, a), torch.where(turned, a, b)
    with_a, with_b = (count == 3) & (which // 2 == 0), (count == 3) & (which // 2 == 1)
    a, b, c = torch.where(with_a, c, a), torch.where(with_b, c, b), torch.where(with_a, a, torch.where(with_b, b, c))
    return torch.stack([a, b, c], dim=2)
