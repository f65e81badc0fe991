"""The law "light" of i-GSM: that of the cited generator, in its style of this name, without its abstract parameters.

The number of operations is the smaller of two draws, so most problems are short. The generator then draws whole
problems until one takes as many operations. How many statements, needed statements, levels and entities such a problem
has is worked out here once, exactly, as a table; all else is drawn as the generator draws it. docs/igsm.md has every
step, and statistics of both.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import torch
from torch import Tensor

from loopt.random_bits import Stream
from loopt.tasks.igsm_problem import PER_LEVEL, Problem, ends_of, longest_text, signs

LEVELS = 4
"""The most levels there can be."""
WIDTHS = (2, 3, 4)
"""How many entities a level can have at least, and at most: both are drawn from these."""
CENTERS = {2: 0.2, 3: 0.5, 4: 0.8}
"""A problem of this relative length prefers so many levels, or entities to a level."""
MOST_TERMS = 4
"""Terms of a right side: parameters, and a constant counts as one."""
ROOM = 11
"""Tokens set aside for a statement. Few problems use more on average, and those that do lose their last distractors."""
FINENESS = 2**30
"""Chances are rounded to multiples of one in so many."""
NEVER = torch.iinfo(torch.int64).max
"""A sort key that comes after all others."""


@dataclass(frozen=True)
class LightLaw:
    operations: int
    """The most operations that an answer can take."""
    edges: int
    """The most statements a problem can have."""
    levels: tuple[int, int]
    """The fewest and the most levels of entities."""
    only: int | None = None
    """The number of operations that all problems take; none: the smaller of two draws."""

    @property
    def room(self) -> int:
        """Returns tokens for all that a query can need, and for all distractors in all but a few problems in 1000."""
        # The longest needed part is a constant, c * x, and from then on x + y, one operation each.
        longest_needed = max(6, 12 * self.operations - 8)
        return min(max(ROOM * self.edges, longest_needed), longest_text(self.edges))

    @property
    def difficulties(self) -> dict[str, LightLaw]:
        names = {k: f"{k} operation{'s' if k > 1 else ''}" for k in range(1, self.operations + 1)}
        return {name: replace(self, only=k) for k, name in names.items()}

    def draw(self, indices: Tensor, stream: Stream, modulus: int) -> Problem:
        n = self.edges
        twice = 1 + stream.integers(indices, 2, self.operations, "operations")  # [batch, 2]
        operations = twice.amin(1, keepdim=True)  # [batch, 1]
        if self.only is not None:
            operations = torch.full_like(operations, self.only)
        needed, statements, levels, fewest, most = self._size(indices, operations, stream)  # [batch, 1] each
        entities = _entities(indices, statements, levels, fewest, most, stream)  # [batch, 4]
        upper, lower = self._parameters(indices, statements, levels, entities, stream)  # [batch, n]
        count, operands, constants = self._dependencies(indices, operations, needed, stream)

        sign = signs(count, stream.integers(indices, n, 2, "minus"), MOST_TERMS)  # [batch, n, 4]
        multiplies = stream.integers(indices, n, 2, "constant role") == 1  # [batch, n]
        added, factor = constants & (count > 0) & ~multiplies, constants & (count > 0) & multiplies
        constant = stream.integers(indices, n, modulus, "constants")  # [batch, n]
        factors = 1 + stream.integers(indices, n, modulus - 1, "factors")  # [batch, n]
        constant = torch.where(factor, factors, torch.where(constants, constant, 0))
        return Problem(upper, lower, statements, needed, needed - 1, count, operands, sign, added, factor, constant)

    def _size(self, indices: Tensor, operations: Tensor, stream: Stream) -> tuple[Tensor, ...]:
        """Draws the numbers of a Size, [batch, 1] each, for problems that take so many operations, [batch, 1]."""
        ends, sizes = _table_on(self.operations, self.edges, *self.levels, indices.device)
        drawn = (operations - 1) * FINENESS + stream.integers(indices, 1, FINENESS, "size")  # [batch, 1]
        return sizes[torch.searchsorted(ends, drawn, right=True)].unbind(2)

    def _parameters(
        self, indices: Tensor, statements: Tensor, levels: Tensor, entities: Tensor, stream: Stream
    ) -> tuple[Tensor, Tensor]:
        """Draws the edges that are parameters, in random order, and returns their ends, [batch, n] each. Every entity
        but those of the first level has an edge from above; the others are drawn from all that are left."""
        n, batch = self.edges, len(indices)
        entity = torch.arange(PER_LEVEL, device=indices.device)  # [4]
        exists = entity < entities[:, :, None]  # [batch, 4, 4]
        possible = exists[:, :-1, :, None] & exists[:, 1:, None, :]  # [batch, 3, 4, 4]: levels, upper, lower
        choices = entities[:, :-1, None].expand(-1, -1, PER_LEVEL).flatten(1)  # [batch, 12]
        parent = stream.integers(indices, choices.shape[1], choices, "edges from above")  # [batch, 12]
        owed = possible & (entity[:, None] == parent.view(batch, LEVELS - 1, 1, PER_LEVEL))  # [batch, 3, 4, 4]

        keys = stream.sort_keys(indices, (LEVELS - 1) * PER_LEVEL**2, "edges")  # [batch, 48]
        first = keys + torch.iinfo(torch.int64).min
        keys = torch.where(owed.flatten(1), first, torch.where(possible.flatten(1), keys, NEVER))
        edges = keys.topk(n, dim=1, largest=False).indices  # [batch, n]
        there = torch.arange(n, device=indices.device) < statements  # [batch, n]
        order = torch.where(there, stream.sort_keys(indices, n, "parameters"), NEVER).argsort(dim=1)  # [batch, n]

        # Names are drawn too: which letters of a level stand for its entities, and where fewer levels begin.
        letters = stream.sort_keys(indices, LEVELS * PER_LEVEL, "names").view(batch, LEVELS, PER_LEVEL).argsort(dim=2)
        level = torch.arange(LEVELS, device=indices.device)[:, None]  # [4, 1]
        letters = (PER_LEVEL * level + letters).flatten(1)  # [batch, 16]
        begin = PER_LEVEL * stream.integers(indices, 1, 1 + LEVELS - levels, "first level")  # [batch, 1]
        upper, lower = (letters.gather(1, end) + begin for end in ends_of(edges.gather(1, order)))
        return upper, lower

    def _dependencies(
        self, indices: Tensor, operations: Tensor, needed: Tensor, stream: Stream
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draws how many parameters each one uses, [batch, n], which, [batch, n, 4], and whether a constant is among
        its terms, [batch, n]."""
        n = self.edges
        i = torch.arange(n, device=indices.device)  # [n]
        is_needed = i < needed  # [batch, n]
        # All may use what comes before, but for half of the distractors, which use nothing but one another.
        apart = ~is_needed & (stream.integers(indices, n, 2, "apart") == 1)  # [batch, n]
        may_use = (i[:, None] > i) & (~apart[:, :, None] | apart[:, None, :])  # [batch, n, n]
        link = is_needed[:, :, None] & (i[:, None] == i + 1)  # [batch, n, n]: the needed ones are a chain

        of_needed = self._terms_of_needed(indices, operations, needed, stream)  # [batch, n]
        eighths = stream.integers(indices, n, 8, "terms of distractors")  # [batch, n]
        of_distractors = 1 + (eighths >= 4).long() + (eighths >= 6) + (eighths >= 7)  # one more with chance 1/2, thrice
        available = 1 + may_use.sum(2)  # [batch, n]: the parameters, and a constant
        terms = torch.where(is_needed, of_needed, of_distractors).minimum(available)
        uses_all = terms == available

        keys = stream.sort_keys(indices, n * n, "operands").view(len(indices), n, n)
        keys = torch.where(uses_all[:, :, None], i, keys)  # what is used in full is written in its own order
        keys = torch.where(link, -1, torch.where(may_use, keys, NEVER))  # the link is written first
        # A constant has an even chance to be there. If not, that of a needed parameter is drawn among the others.
        sure = uses_all | ((stream.integers(indices, n, 2, "constant") == 1) & (~is_needed | (terms > 1)))  # [batch, n]
        before = keys < stream.sort_keys(indices, n, "constant as a term")[:, :, None]  # [batch, n, n]
        constants = sure | (is_needed & (before.sum(2) < terms))  # [batch, n]
        operands = keys.topk(MOST_TERMS, dim=2, largest=False).indices  # [batch, n, 4]
        return terms - constants.long(), operands, constants

    def _terms_of_needed(self, indices: Tensor, operations: Tensor, needed: Tensor, stream: Stream) -> Tensor:
        """Draws how many terms needed parameters have, [batch, n]: one or two, and more where the further operations
        fall. Each falls on one of those that have room for it, the first three parameters having less."""
        n, rounds = self.edges, max(k - _fewest_needed(k) for k in range(1, self.operations + 1))
        i = torch.arange(n, device=indices.device)  # [n]
        room = torch.where(i < needed, (i - 1).clamp(0, MOST_TERMS - 2), 0)  # [batch, n]
        keys = stream.sort_keys(indices, rounds * n, "further operations").view(len(indices), rounds, n)
        further = torch.zeros_like(room)  # [batch, n]
        for r in range(rounds):
            where = torch.where(further < room, keys[:, r], NEVER).argmin(1, keepdim=True)  # [batch, 1]
            further = further.scatter_add(1, where, (needed + r < operations).long())
        one_or_two = 1 + stream.integers(indices, n, 2, "terms of needed")  # [batch, n]
        return torch.where(further > 0, 2 + further, one_or_two)


def _entities(
    indices: Tensor, statements: Tensor, levels: Tensor, fewest: Tensor, most: Tensor, stream: Stream
) -> Tensor:
    """Draws how many entities each level has, [batch, 4]: the fewest at first, then one more in a level at a time,
    as long as there is no room for the statements otherwise, or chance will have it."""
    in_use = torch.arange(LEVELS, device=indices.device) < levels  # [batch, 4]
    entities = fewest * in_use  # [batch, 4]
    rounds = LEVELS * (WIDTHS[-1] - WIDTHS[0])
    chance = stream.integers(indices, 1, FINENESS, "chance of more entities")  # [batch, 1]
    luck = stream.integers(indices, rounds, FINENESS, "more entities")  # [batch, rounds]
    keys = stream.sort_keys(indices, rounds * LEVELS, "growing level").view(len(indices), rounds, LEVELS)
    grows = torch.ones_like(statements).bool()  # [batch, 1]
    for r in range(rounds):
        can_grow = in_use & (entities < most)  # [batch, 4]
        too_few = (entities[:, :-1] * entities[:, 1:]).sum(1, keepdim=True) < statements  # [batch, 1]
        all_owed = entities[:, 1:].sum(1, keepdim=True) == statements  # no statement would be left for one more
        wanted = too_few | (~all_owed & (luck[:, r : r + 1] < chance))
        grows = grows & wanted & can_grow.any(1, keepdim=True)
        where = torch.where(can_grow, keys[:, r], NEVER).argmin(1, keepdim=True)  # [batch, 1]
        entities = entities.scatter_add(1, where, grows.long())
    return entities


Size = tuple[int, int, int, int, int]
"""Needed statements, statements, levels, and the fewest and the most entities that a level may have."""


@cache
def size_chances(most_operations: int, edges: int, levels: tuple[int, int]) -> tuple[dict[Size, float], ...]:
    """Returns for each number of operations, from 1 on, how likely each size is among problems that take so many.

    The generator draws sizes without regard to it: a length s, the smaller of two draws; needed statements, from the
    larger of two draws up to s; levels and entities by a soft choice on s; and statements. What is drawn takes s
    operations, or fewer where the needed statements have no room for so many terms.
    """
    found: list[dict[Size, float]] = [defaultdict(float) for _ in range(most_operations)]
    for s, of_length in _smaller_of_two(1, most_operations).items():
        needed_chances = _needed_of(s)
        for shape, of_shape in _shapes(s, edges, levels).items():
            for statements, of_statements in _statements_of(edges, *shape).items():
                for drawn, of_needed in needed_chances.items():
                    needed = min(drawn, statements)
                    operations = needed + min(s - needed, _most_further(needed))
                    chance = of_length * of_shape * of_statements * of_needed
                    found[operations - 1][needed, statements, *shape] += chance
    totals = [math.fsum(sizes.values()) for sizes in found]
    return tuple(
        {size: chance / total for size, chance in sizes.items()} for sizes, total in zip(found, totals, strict=True)
    )


def _smaller_of_two(low: int, high: int) -> dict[int, float]:
    """Returns how likely each number is to be the smaller of two that are drawn from ``low`` to ``high``."""
    return {v: (2 * (high - v) + 1) / (high - low + 1) ** 2 for v in range(low, high + 1)}


def _needed_of(s: int) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    for larger in range(1, s + 1):
        for drawn in range(larger, s + 1):
            found[drawn] += (2 * larger - 1) / s**2 / (s - larger + 1)
    return found


def _shapes(s: int, edges: int, levels: tuple[int, int]) -> dict[tuple[int, int, int], float]:
    """Returns how likely levels, and the fewest and the most entities to a level, are for problems of length s."""
    length = (s - 1) / (edges - 1)
    likes = {number: math.exp(-((length - center) ** 2)) for number, center in CENTERS.items()}
    depths = range(levels[0], levels[1] + 1)
    total = sum(likes[depth] for depth in depths) * sum(likes[width] for width in WIDTHS) ** 2
    found: dict[tuple[int, int, int], float] = defaultdict(float)
    for depth, one, other in product(depths, WIDTHS, WIDTHS):
        found[depth, min(one, other), max(one, other)] += likes[depth] * likes[one] * likes[other] / total
    return found


def _statements_of(edges: int, depth: int, fewest: int, most: int) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    for drawn, chance in _smaller_of_two((depth - 1) * fewest, edges).items():
        found[min(drawn, (depth - 1) * most**2)] += chance
    return found


def _most_further(needed: int) -> int:
    """Returns the operations that needed statements have room for beyond one each: none in the first two, one in the
    third, two in every other."""
    return max(0, 1 if needed == 3 else 2 * needed - 5)


def _fewest_needed(operations: int) -> int:
    """Returns the fewest needed statements that have room for so many operations."""
    return next(needed for needed in range(1, operations + 1) if needed + _most_further(needed) >= operations)


_tables: dict[tuple[int, int, int, int, torch.device], tuple[Tensor, Tensor]] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _table_on(
    most_operations: int, edges: int, fewest_levels: int, most_levels: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Returns where each size's share ends, [sizes] integers, of which those of k operations lie between k - 1 and k
    times FINENESS, and the sizes, [sizes, 5]; on a device, copied once: no CUDA graph can contain a copy."""
    key = (most_operations, edges, fewest_levels, most_levels, device)
    if key not in _tables:
        ends, sizes = [], []
        for k, chances in enumerate(size_chances(most_operations, edges, (fewest_levels, most_levels))):
            reached = 0.0
            for size, chance in sorted(chances.items()):
                reached += chance
                ends.append(k * FINENESS + round(reached * FINENESS))
                sizes.append(size)
            ends[-1] = (k + 1) * FINENESS
        _tables[key] = (torch.tensor(ends, device=device), torch.tensor(sizes, device=device))
    return _tables[key]
