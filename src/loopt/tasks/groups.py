"""Finite groups, written out as multiplication tables.

``group`` knows the cyclic groups Z2, Z3, … (or C2, C3, …), the symmetric groups S2, S3, …, the alternating groups
A3, A4, …, the dihedral groups D3, D4, … and direct products of these, joined with ``x``:

>>> s3 = group("S3")
>>> s3.elements
('e', '(2 3)', '(1 2)', '(1 2 3)', '(1 3 2)', '(1 3)')
>>> s3.elements[s3.product("(1 2)", "(2 3)")], s3.elements[s3.product("(2 3)", "(1 2)")]
('(1 2 3)', '(1 3 2)')
>>> group("Z2xZ3").elements
('[0, 0]', '[0, 1]', '[0, 2]', '[1, 0]', '[1, 1]', '[1, 2]')

Row g, column h of a table holds g∘h. Permutations are composed like functions: of g∘h, h acts first. Dn has 2n
elements, the symmetries of the n-gon (some write D2n): rotations r and reflections s, with r∘s = s∘r⁻¹.

>>> group("D4").elements
('e', 'r', 'r2', 'r3', 's', 'sr', 'sr2', 'sr3')

Any other group is given by its table, in Python or as a JSON file that holds a list of rows:

>>> Group.from_table([[0, 1, 2], [1, 0, 2], [2, 2, 0]])
Traceback (most recent call last):
loopt.errors.InputError: group table: not associative: (1∘2)∘2 = 0 but 1∘(2∘2) = 1
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.files import read_json

MAX_ORDER = 1000
"""S6 has 720 elements; a table of S7 would have 25 million entries."""

_KNOWN = "Z7 (or C7), S5, A5, D4, products such as S3xZ2, or a file such as table.json"
_FACTOR = re.compile("([ZCSAD])([1-9][0-9]{0,3})")
_SMALLEST = {"Z": 2, "C": 2, "S": 2, "A": 3, "D": 3}


@dataclass(frozen=True, eq=False)
class Group:
    """A finite group. Its elements are numbers, 0 to order - 1; in every group known by name 0 is the identity."""

    name: str
    elements: tuple[str, ...] = field(repr=False)
    """The name of each element."""
    table: tuple[tuple[int, ...], ...] = field(repr=False)
    """g∘h in row g, column h."""

    @classmethod
    def from_table(
        cls, table: Sequence[Sequence[int]] | Tensor, name: str = "table", elements: Sequence[str] | None = None
    ) -> Group:
        """Returns the group with this table, checked to be one. Without ``elements`` they are named 0, 1, 2, …"""
        rows = _rows(table, name)
        _check_identity_and_inverses(rows, name)
        _check_associativity(rows, name)
        names = tuple(str(i) for i in range(len(rows))) if elements is None else tuple(elements)
        if len(names) != len(rows) or len(set(names)) < len(names):
            raise InputError(f"group {name}: {len(rows)} elements need as many names, all different; given are {names}")
        return cls(name, names, rows)

    @property
    def order(self) -> int:
        return len(self.table)

    @cached_property
    def identity(self) -> int:
        return self.table.index(tuple(range(self.order)))

    def product(self, *word: int | str) -> int:
        """Returns the product of ``word``, elements by number or name, from left to right; of none, the identity."""
        product = self.identity
        for element in word:
            product = self.table[product][self.index(element) if isinstance(element, str) else element]
        return product

    def index(self, element: str) -> int:
        if element not in self.elements:
            raise InputError(f"group {self.name}: no element {element!r}; allowed are {', '.join(self.elements)}")
        return self.elements.index(element)

    def tensor(self, device: torch.device | str | None = None) -> Tensor:
        """Returns the table as an int64 tensor, [order, order]."""
        return torch.tensor(self.table, dtype=torch.int64, device=device)


def group(name: str) -> Group:
    """Returns the group of that name, or the one whose table is in the JSON file of that name."""
    if not isinstance(name, str):
        raise InputError(f"group {name!r} is not known; allowed are {_KNOWN}")
    return _from_file(name) if name.endswith(".json") and "\0" not in name else _by_name(name)


def factors(name: str) -> tuple[tuple[str, int], ...]:
    """Returns the factors in a group's name, checked: S3xC2 has ("S", 3) and ("Z", 2)."""
    found = []
    for factor in name.split("x"):
        match = _FACTOR.fullmatch(factor)
        if not match:
            raise InputError(f"group {name!r} is not known; allowed are {_KNOWN}")
        family, size = match[1], int(match[2])
        if size < _SMALLEST[family]:
            raise InputError(f"group {name!r}: the smallest {family} is {family}{_SMALLEST[family]}")
        found.append(("Z" if family == "C" else family, size))
    if any(size > MAX_ORDER for _, size in found) or math.prod(_order(*factor) for factor in found) > MAX_ORDER:
        raise InputError(f"group {name!r} has more than {MAX_ORDER} elements; larger tables are not made")
    return tuple(found)


def _order(family: str, size: int) -> int:
    return {"Z": size, "D": 2 * size}.get(family) or math.factorial(size) // (2 if family == "A" else 1)


@cache
def _by_name(name: str) -> Group:
    named_tables = [_factor(*factor) for factor in factors(name)]
    elements, table = named_tables[0]
    if len(named_tables) > 1:
        elements = [f"[{', '.join(names)}]" for names in itertools.product(*(names for names, _ in named_tables))]
        for _, right in named_tables[1:]:
            order = len(table) * len(right)
            blocks = table[:, None, :, None] * len(right) + right[None, :, None, :]
            table = blocks.reshape(order, order)
    return Group(name, tuple(elements), tuple(map(tuple, table.tolist())))


def _factor(family: str, size: int) -> tuple[list[str], Tensor]:
    """Returns the elements' names and the table [order, order] of one factor."""
    if family == "Z":
        numbers = torch.arange(size)
        return [str(k) for k in range(size)], (numbers[:, None] + numbers) % size
    if family == "D":
        return _dihedral(size)
    permutations = list(itertools.permutations(range(size)))
    if family == "A":
        permutations = [one for one in permutations if _even(one)]
    return [_cycles(one) for one in permutations], _permutation_table(torch.tensor(permutations))


def _dihedral(size: int) -> tuple[list[str], Tensor]:
    """Returns names and table of all s^f r^k; s^f r^k s^f' r^k' = s^(f+f') r^(k' ± k), with the minus where f' = 1."""
    number = torch.arange(2 * size)
    reflects, turns = number // size, number % size
    both = (reflects[:, None] + reflects) % 2
    turned = torch.where(reflects == 1, -turns[:, None], turns[:, None]) + turns
    rotations = ["", "r", *(f"r{k}" for k in range(2, size))]
    return ["e", *rotations[1:], *("s" + rotation for rotation in rotations)], both * size + turned % size


def _permutation_table(permutations: Tensor) -> Tensor:
    """Returns which permutation g∘h is: [order, points] permutations in ascending order -> [order, order]."""
    points = permutations.shape[1]
    weights = points ** torch.arange(points - 1, -1, -1)
    codes = permutations @ weights  # [order], ascending
    composed = permutations[:, permutations]  # [order of g, order of h, points]: g(h(x))
    return torch.searchsorted(codes, composed @ weights)


def _even(permutation: Sequence[int]) -> bool:
    return sum(a > b for a, b in itertools.combinations(permutation, 2)) % 2 == 0


def _cycles(permutation: Sequence[int]) -> str:
    """Returns cycle notation, points counted from 1: each cycle from its smallest point, without fixed points."""
    text, seen = "", set[int]()
    for start in range(len(permutation)):
        cycle = [start]
        while (x := permutation[cycle[-1]]) != start:
            cycle.append(x)
        if len(cycle) > 1 and start not in seen:
            text += f"({' '.join(str(x + 1) for x in cycle)})"
        seen.update(cycle)
    return text or "e"


def _from_file(name: str) -> Group:
    return Group.from_table(read_json(Path(name), InputError), name)


def _rows(table: Any, name: str) -> tuple[tuple[int, ...], ...]:
    if isinstance(table, Tensor):
        table = table.tolist()
    if not isinstance(table, list | tuple) or not table or not all(isinstance(row, list | tuple) for row in table):
        raise InputError(f"group {name}: a table is a list of one or more rows, each a list")
    order = len(table)
    if order > MAX_ORDER:
        raise InputError(f"group {name}: {order} rows; at most {MAX_ORDER} are allowed")
    for i, row in enumerate(table):
        if len(row) != order:
            raise InputError(f"group {name}: not square: row {i} has {len(row)} entries and there are {order} rows")
        for j, entry in enumerate(row):
            if not isinstance(entry, int) or isinstance(entry, bool) or not 0 <= entry < order:
                raise InputError(
                    f"group {name}: row {i}, column {j} holds {entry!r}; allowed are integers, 0 to {order - 1}"
                )
    return tuple(map(tuple, table))


def _check_identity_and_inverses(rows: tuple[tuple[int, ...], ...], name: str) -> None:
    columns = tuple(zip(*rows, strict=True))
    everything = tuple(range(len(rows)))
    identities = [e for e in everything if rows[e] == columns[e] == everything]
    if not identities:
        raise InputError(f"group {name}: no identity: no e has e∘x = x∘e = x for every x")
    e = identities[0]
    for x in everything:
        if (e, e) not in zip(rows[x], columns[x], strict=True):
            raise InputError(f"group {name}: no inverse: no x has {x}∘x = x∘{x} = {e}, the identity")


def _check_associativity(rows: tuple[tuple[int, ...], ...], name: str) -> None:
    table = torch.tensor(rows)
    for a in range(len(rows)):
        left, right = table[table[a]], table[a][table]  # [order of b, order of c]
        if not torch.equal(left, right):
            b, c = (left != right).nonzero()[0].tolist()
            one, other = int(left[b, c]), int(right[b, c])
            raise InputError(f"group {name}: not associative: ({a}∘{b})∘{c} = {one} but {a}∘({b}∘{c}) = {other}")
