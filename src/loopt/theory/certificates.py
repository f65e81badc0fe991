"""Checks of attention and feed-forwards over all cases, which settle a construction for every input.

The state of a position is a sum of tables: one row of each *variable* (an element, a pointer, a letter) and a constant.
A hidden unit that reads few variables is a function of those alone, so a feed-forward is a sum of functions of few
variables. Such a sum is what it should be everywhere if it is so wherever all variables but those of one group have a
fixed value, for each group that a unit, or the right answer, reads together, and for each variable alone, since x adds
it: every other value is a sum of differences of these. (``cases_of`` lists them.) In F_s this holds as long as no sum
saturates, which is checked too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopt.theory.formal import FormalLayer, Head, Space
from loopt.theory.precision import Arithmetic, FixedPoint, feed_forward
from loopt.theory.proof import Tally

MARGIN = 40.0
"""How far attention scores over the reals have to lie below the target's: e^-40 is beyond the precision of float64."""
ROWS = 256
"""How many cases run together."""


def one_hot(
    tally: Tally, what: str, F: Arithmetic, queries: Tensor, keys: Tensor, targets: Tensor, causal: bool = False
) -> None:
    """Counts for each query whether attention gives all weight to the key ``targets[i]``: [Q, k], [K, k], [Q]. With
    ``causal`` the query i sees the keys up to i; else all, and so it is for any of them that include the target."""
    for start in range(0, len(queries), ROWS):
        rows = slice(start, start + ROWS)
        scores = F.matmul(queries[rows], keys.T)  # [rows, K]
        visible = torch.ones_like(scores, dtype=torch.bool)
        if causal:
            visible = torch.arange(len(keys)) <= torch.arange(len(queries))[rows, None]
        at = torch.zeros_like(visible).scatter_(1, targets[rows, None], True)
        if isinstance(F, FixedPoint):
            tally.holds(f"{what}, row {start} and on", (F.softmax(scores, visible) == at).all(-1))
        else:
            best = scores.masked_fill(~at, -torch.inf).amax(-1)
            tally.holds(
                f"{what}, row {start} and on", apart(scores.masked_fill(at | ~visible, -torch.inf).amax(-1), best)
            )


def apart(lower: Tensor, higher: Tensor) -> Tensor:
    """Tells where softmax over the reals leaves the lower score nothing that float64 notices."""
    return lower <= higher - MARGIN


def copies(tally: Tally, what: str, head: Head, source: Tensor, target: Tensor) -> None:
    """Counts whether the head's values are the coordinates ``source`` [k, d], and it adds them to ``target`` [k, d]."""
    tally.equal(f"{what}: values", head.value, source)
    tally.equal(f"{what}: where they go", head.output, target)


def reads_only(tally: Tally, what: str, weights: Tensor, space: Space, *names: str) -> None:
    """Counts whether ``weights`` [k, d] are 0 on all coordinates but these."""
    others = ~space.read(*names).any(0)
    rest = weights[:, others]
    tally.equal(f"{what} reads {', '.join(names)} alone", rest, torch.zeros_like(rest))


@dataclass(frozen=True, eq=False)
class Variables:
    """What a state is made of: for each variable a table of the rows that it may add, and a constant."""

    tables: Mapping[str, Tensor]
    """By name, [values, d]. The first value is the one that is fixed while others vary."""
    constant: Tensor  # [d]

    def state(self, values: Mapping[str, Tensor]) -> Tensor:
        """Returns the states [cases, d] with these values, [cases] each; of other variables the first."""
        count = max((len(value) for value in values.values()), default=1)
        total = self.constant.expand(count, -1).clone()
        for name, table in self.tables.items():
            total += table[values[name]] if name in values else table[0]
        return total

    def read_by(self, units: Tensor) -> list[frozenset[str]]:
        """Returns for each row of W1 [units, d] the variables that change a coordinate which it reads."""
        varies = {name: (table != table[0]).any(0) for name, table in self.tables.items()}  # [d] each
        reads = {name: (units[:, where] != 0).any(1) for name, where in varies.items()}
        return [frozenset(name for name, yes in reads.items() if bool(yes[unit])) for unit in range(len(units))]

    def cases_of(self, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
        """Yields all values of these variables, some cases at a time."""
        sizes = [len(self.tables[name]) for name in names]
        total = int(torch.tensor(sizes).prod()) if names else 1
        for start in range(0, total, ROWS):
            rest, values = torch.arange(start, min(start + ROWS, total)), {}
            for name, size in zip(reversed(names), reversed(sizes), strict=True):
                values[name], rest = rest % size, rest // size
            yield values


def feed_forward_is(
    tally: Tally,
    what: str,
    F: Arithmetic,
    layer: FormalLayer,
    variables: Variables,
    wanted: Variables,
    becomes: Mapping[str, tuple[tuple[str, ...], Tensor]],
    most_cases: int = 1_000_000,
) -> None:
    """Counts for every case whether x + FF(x) is the state of ``wanted`` that it should be.

    ``becomes`` has for each variable of ``wanted`` the variables that decide it, and the value for each of their
    values, a tensor with a dimension for each."""
    read = variables.read_by(layer.W1)
    alone = {frozenset([name]) for name in variables.tables}  # x adds each of them, whether a unit reads it or not
    groups = {frozenset(names) for names, _ in becomes.values()} | set(read) | alone
    maximal = [one for one in groups if not any(one < other for other in groups)] or [frozenset()]
    room = torch.zeros(layer.W2.shape[0], dtype=torch.float64)  # the largest sum that may pass on the way
    for group in sorted(maximal, key=sorted):
        names = sorted(group)
        if torch.tensor([len(variables.tables[name]) for name in names]).prod() > most_cases:
            tally.holds(f"{what}: hidden units read {', '.join(names)} together", False)
            continue
        largest = torch.zeros_like(room)
        own = torch.tensor([bool(one) and one <= group for one in read])
        for values in variables.cases_of(names):
            x = variables.state(values)
            after = F.add(x, feed_forward(F, layer, x))
            right = wanted.state({name: _decided(values, *rule) for name, rule in becomes.items()})
            tally.equal(f"{what}, {' and '.join(names)} {_first(values)} and on", after, right.expand_as(after))
            hidden = (x @ layer.W1[own].T + layer.b1[own]).relu()
            largest = torch.maximum(largest, (hidden @ layer.W2[:, own].abs().T).amax(0))
        room += largest
    if isinstance(F, FixedPoint):
        always = torch.tensor([not one for one in read])
        if bool(always.any()):
            room += (variables.state({}) @ layer.W1[always].T + layer.b1[always]).relu()[0] @ layer.W2[
                :, always
            ].abs().T
        tally.holds(f"{what}: sums that saturate, by coordinate", room + layer.b2.abs() <= F.largest)


def _decided(values: Mapping[str, Tensor], names: tuple[str, ...], table: Tensor) -> Tensor:
    count = max((len(value) for value in values.values()), default=1)
    first = torch.zeros(count, dtype=torch.long)
    return table[tuple(values.get(name, first) for name in names)] if names else table.expand(count)


def _first(values: Mapping[str, Tensor]) -> str:
    return ", ".join(str(int(value[0])) for value in values.values())
