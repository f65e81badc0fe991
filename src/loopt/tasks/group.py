"""Group composition: multiply n elements of a finite group, from left to right.

The label at position i is g_1 ∘ g_2 ∘ … ∘ g_i, and the answer is the label at the last one: the problem of Theorem 5.1.
For a group that is not solvable, S5 and A5 among them, no transformer of constant depth is believed to solve it for
every n; a depth of log2 n is enough. The tables are those of `groups.py`: of two permutations the right one acts first.

>>> task = GroupComposition(group="S3", n=4)
>>> print(task.render([task.vocabulary.index(name) for name in ("(1 2)", "(2 3)", "(1 2 3)", "(1 3)")]))
4 elements of S3, composed from left to right: answer (1 2)
<BLANKLINE>
position  element  product so far
       1  (1 2)    (1 2)
       2  (2 3)    (1 2 3)
       3  (1 2 3)  (1 3 2)
       4  (1 3)    (1 2)
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate
from typing import ClassVar, get_args

import torch
from torch import Tensor

from loopt.random_bits import Stream
from loopt.tasks import groups
from loopt.tasks.base import IGNORE, Batch, Supervision, Task, check_choice, check_integer, different_integers

Act = tuple[tuple[int, ...], ...]
"""How an element acts: for each factor of its group, where each point goes."""


@dataclass(frozen=True)
class GroupComposition(Task):
    name: ClassVar[str] = "group"

    group: str = "S5"
    """Which group: Z7 (or C7), S5, A5, D4 (8 elements), a product such as S3xZ2, or a JSON file with a table."""
    n: int = 32
    """How many elements are composed."""
    supervision: Supervision = "last"
    """last: the label is the product of all elements. every: each position's label is the product so far."""
    test_lengths: tuple[int, ...] = ()
    """The numbers of elements, up to n, that a trained model is scored on, one by one; none given: n."""
    loops_for_n: int | None = None
    """Where loop_counts chooses the loops of a step: those from which on training words have n elements. With each loop
    fewer they have half as many, as a loop of the theorem's model doubles what it has multiplied. Unless given, all
    have n."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self.name, "n", self.n, 1)
        lengths = different_integers(self.name, "test_lengths", self.test_lengths, 1, self.n)
        object.__setattr__(self, "test_lengths", lengths)
        check_choice(self.name, "supervision", self.supervision, get_args(Supervision))
        if self.loops_for_n is not None:
            check_integer(self.name, "loops_for_n", self.loops_for_n, 1)
        _ = self._key  # fails now where there is no such group

    @cached_property
    def _group(self) -> groups.Group:
        return groups.group(self.group)

    @cached_property
    def _key(self) -> str:
        """Returns a hash of the group's table: a name may be that of a file, which changes."""
        key = hashlib.sha256(repr(self._group.table).encode()).hexdigest()
        _groups[key] = self._group
        return key

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return self._group.elements

    @property
    def length(self) -> int:
        return self.n

    @property
    def tests(self) -> dict[str, Task]:
        lengths: dict[str, Task] = {f"n={n}": replace(self, n=n, test_lengths=()) for n in self.test_lengths}
        return lengths or super().tests

    @property
    def loops_when_whole(self) -> int | None:
        return self.loops_for_n

    def for_loops(self, loops: int) -> Task:
        if self.loops_for_n is None:
            return self
        fewer = max(0, self.loops_for_n - loops)
        return replace(self, n=math.ceil(self.n / 2**fewer), test_lengths=(), loops_for_n=None)

    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        word = stream.integers(indices, self.n, self._group.order, "elements")  # [batch, n]
        products = _prefix_products(word, _table_on(self._key, indices.device))  # [batch, n]
        answers = torch.full_like(products, IGNORE)
        answers[:, -1] = products[:, -1]
        return Batch(word, products if self.supervision == "every" else answers, answers)

    def solve(self, tokens: Sequence[int]) -> list[int]:
        """Returns the products so far, found by reading each element's name as the permutations it stands for."""
        word = self._read(tokens)
        if self.group.endswith(".json"):  # nothing but its table says what such a group is
            return list(accumulate(word, lambda g, h: self._group.table[g][h]))
        acts = _as_permutations(self.group, self.vocabulary)
        number = {act: i for i, act in enumerate(acts)}
        return [number[product] for product in accumulate((acts[element] for element in word), _compose)]

    def render(self, tokens: Sequence[int]) -> str:
        """Returns the elements, one to a line, each with the product so far."""
        word = [self.vocabulary[element] for element in self._read(tokens)]
        products = [self.vocabulary[product] for product in self.solve(tokens)]
        width = max(len("element"), *map(len, word))
        lines = [f"{len(word)} elements of {self.group}, composed from left to right: answer {products[-1]}", ""]
        lines.append(f"position  {'element':{width}}  product so far")
        for position, (element, product) in enumerate(zip(word, products, strict=True), start=1):
            lines.append(f"{position:8}  {element:{width}}  {product}")
        return "\n".join(lines)

    def document(self, tokens: Sequence[int]) -> str:
        """Returns the product as an equation: ``(1 2) ∘ (2 3) = (1 2 3)``."""
        word = [self.vocabulary[element] for element in self._read(tokens)]
        return f"{' ∘ '.join(word)} = {self.vocabulary[self.solve(tokens)[-1]]}"

    def _read(self, tokens: Sequence[int]) -> list[int]:
        word = [int(token) for token in tokens]
        check_integer(self.name, "length", len(word), 1)
        for element in word:
            check_integer(self.name, "element", element, 0, self._group.order - 1)
        return word


_groups: dict[str, groups.Group] = {}
_tables: dict[tuple[str, torch.device], Tensor] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _table_on(key: str, device: torch.device) -> Tensor:
    """Returns the table on a device, copied once: a copy makes the host wait, and no CUDA graph can contain one.

    It goes by key, since torch.compile takes a string for a constant and, up to torch 2.11 at least, no group.
    """
    if (key, device) not in _tables:
        _tables[key, device] = _groups[key].tensor(device)
    return _tables[key, device]


def _prefix_products(word: Tensor, table: Tensor) -> Tensor:
    """Returns the product of each element with all before it, [batch, n] -> [batch, n], in ⌈log2 n⌉ rounds.

    Each round doubles how far back a product reaches: it is multiplied, on the left, by the product that ends where it
    begins.
    """
    products, reach = word, 1
    while reach < word.shape[1]:
        longer = table[products[:, :-reach], products[:, reach:]]  # [batch, n - reach]
        products = torch.cat([products[:, :reach], longer], dim=1)
        reach *= 2
    return products


@cache
def _as_permutations(group: str, names: tuple[str, ...]) -> list[Act]:
    """Returns how every element acts, according to its name."""
    factors = groups.factors(group)
    split = [name.strip("[]").split(", ") if len(factors) > 1 else [name] for name in names]  # by factor
    return [tuple(_act(*factor, name) for factor, name in zip(factors, by_factor, strict=True)) for by_factor in split]


def _act(family: str, size: int, name: str) -> tuple[int, ...]:
    """Returns where each of the points 0, …, size - 1 goes."""
    points = range(size)
    if family == "Z":
        return tuple((x + int(name)) % size for x in points)
    if family == "D":
        turns = int(name.split("r")[1] or 1) if "r" in name else 0
        sign = -1 if name.startswith("s") else 1
        return tuple(sign * (x + turns) % size for x in points)
    goes_to = list(points)
    for cycle in re.findall(r"\((.*?)\)", name):
        members = [int(point) - 1 for point in cycle.split()]
        for x, y in zip(members, members[1:] + members[:1], strict=True):
            goes_to[x] = y
    return tuple(goes_to)


def _compose(g: Act, h: Act) -> Act:
    """Returns g∘h: first h acts, then g."""
    return tuple(tuple(by_g[x] for x in by_h) for by_g, by_h in zip(g, h, strict=True))
