"""What the feed-forwards of layers L+1 and L+2 of Theorem 5.4 make of any logits: a certificate for every θ and input.

Each hidden unit belongs to a piece by what it reads, and the layer is the sum of its pieces.

Layer L+1, where a position holds any x and any logits y:

- units that read x or y, two each or one for each pair of logits, are compared one by one: they take x and y away, and
  add k·relu(y_b - y_a) to the distance of token a. So that of the best token is 0, and all others are 1 or more where
  the best leads by 1/k or more.
- units that read the position and the counter are run for every position and loop: they make the mask M.

Layer L+2, where a distance D is 0, or 1 or more; only what lies past the token in the making may have others, D ≥ 0:

- units that read one distance and M, for each token: with M=1 they write the token and its embedding where D = 0, and
  take D away. They bend nowhere between, so over the reals few values show all; in F_s every D is run. For the same
  reason a D between 0 and 1 is taken away, too, and leaves a token between 0 and 1.
- units that read one coordinate of the old token and M: with M=1 they take it away; with M=0 they embed it again.
- units that read M alone take it away, and those of the counter count, in every loop.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopt.theory.formal import FormalLayer, FormalTransformer, Space
from loopt.theory.gates import signed_binary
from loopt.theory.precision import Arithmetic, FixedPoint
from loopt.theory.proof import Tally

ROWS = 4096
"""How many values run together."""


def certify_ranking(
    tally: Tally, F: Arithmetic, built: FormalTransformer, space: Space, n: int, m: int, lead: float
) -> None:
    """Checks layer L+1: distances for all logits whose best leads by ``lead``, and the mask of every loop."""
    layer = built.layers[-2]
    reads = layer.W1 != 0
    of_logits, of_counter = (_reads(layer, space, *names) for names in (("x", "score"), ("one", "i", "count")))
    tally.holds("layer L+1: hidden units read logits and x, or positions and counter", of_logits ^ of_counter)
    tally.equal("layer L+1: b2", layer.b2, torch.zeros_like(layer.b2))
    tally.holds("layer L+1: b1 of units of logits and x", layer.b1[of_logits] == 0)
    if tally.wrong:
        return
    alone, pairs = (of_logits & (reads.sum(1) == count) for count in (1, 2))
    tally.holds("layer L+1: units of logits and x read one of them or two", (alone | pairs)[of_logits])
    _takes_away(tally, layer, alone, space.read("x", "score"))
    _ranks(tally, F, layer, pairs, space, lead)
    for t in range(1, m + 1):
        states = built.positions.clone()
        states[:, space["count"]] = _count(space, n + t - 1)
        mask = (torch.arange(1, n + m + 1) >= n + t).double()[:, None] * space.unit("M")
        tally.equal(f"layer L+1: the mask of loop {t}, by position", _run(F, layer, of_counter, states), mask)


def _takes_away(tally: Tally, layer: FormalLayer, units: Tensor, coordinates: Tensor) -> None:
    """Counts whether relu(x) and relu(-x) are there once for each coordinate [k, size], and add -x."""
    rows, writes = layer.W1[units], layer.W2[:, units].T
    signs = torch.cat([coordinates, -coordinates])
    found = (rows[None] == signs[:, None]).all(-1)  # [2k, units]
    tally.holds("layer L+1: x and logits are read once with each sign", (found.sum(1) == 1).all() & found.any(0).all())
    if not tally.wrong:
        tally.equal("layer L+1: x and logits are taken away", writes[found.long().argmax(1)], -signs)


def _ranks(tally: Tally, F: Arithmetic, layer: FormalLayer, units: Tensor, space: Space, lead: float) -> None:
    """Counts whether for each pair of tokens one unit adds k·relu(y_b - y_a) to the distance of a, where k·lead is 1
    or more."""
    rows, writes = layer.W1[units][:, space["score"]], layer.W2[:, units].T
    V = rows.shape[1]
    better, worse = rows.argmax(1), rows.argmin(1)
    one = torch.eye(V, dtype=torch.float64)
    tally.equal("layer L+1: what is compared", rows, one[better] - one[worse])
    order = torch.arange(V * V).view(V, V)
    wanted = order[~torch.eye(V, dtype=torch.bool)]
    tally.equal("layer L+1: each pair once", (better * V + worse).sort().values, wanted)
    if tally.wrong:
        return
    distance = space.read("distance")[worse]  # [V(V-1), size]
    slope = (writes * distance).sum(1)
    tally.equal("layer L+1: comparisons add to distances alone", writes, slope[:, None] * distance)
    least = F.multiply(slope, torch.tensor(lead)) if isinstance(F, FixedPoint) else slope * lead
    tally.holds("layer L+1: a token that is not the best is at distance 1 or more", least >= 1)


def certify_writing(
    tally: Tally, F: Arithmetic, embeddings: Tensor, built: FormalTransformer, space: Space, n: int, m: int
) -> None:
    """Checks layer L+2: where M is 1 the token at distance 0 replaces the old one; x gets θ's embedding [V, d] of the
    token; the counter counts; the rest is emptied."""
    layer = built.layers[-1]
    of_token, of_distance = (layer.W1[:, space[name]] != 0 for name in ("token", "distance"))  # [units, V]
    of_counter = _reads(layer, space, "one", "count") & (layer.W1[:, space["count"]] != 0).any(1)
    one_of_them = of_token.sum(1) + of_distance.sum(1)
    of_mask = _reads(layer, space, "one", "M") & ~of_counter
    gated = _reads(layer, space, "one", "M", "token", "distance") & (one_of_them == 1)
    tally.holds("layer L+2: hidden units read the counter, or M and one coordinate", of_counter | of_mask | gated)
    if tally.wrong:
        return
    M = space.unit("M")
    for mask in (0.0, 1.0):
        found = _run(F, layer, of_mask, (space.unit("one") + mask * M)[None])
        tally.equal(f"layer L+2: M={mask:.0f} is taken away", found, -mask * M[None])
    for t in range(1, m + 1):
        before, after = (_count(space, n + t - i) @ space.read("count") for i in (1, 0))
        added = F.add(_run(F, layer, of_counter, (space.unit("one") + before)[None]), layer.b2)
        tally.equal(f"layer L+2: the counter in loop {t}", added, (after - before)[None])
    none, ends, more = torch.zeros(1), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])
    if isinstance(F, FixedPoint):
        numbers = torch.arange(4**F.s) * F.step  # all that are not negative
        ends, more = numbers[numbers <= 1], numbers[numbers >= 1]
    everything = torch.cat([ends, more])
    for a, embedding in enumerate(embeddings @ space.read("x")):
        token, distance = space.read("token")[a], space.read("distance")[a]
        old = _Piece(tally, F, layer, of_token[:, a], space, token, f"layer L+2: old token {a}")
        old.adds(0.0, none, 0 * token)
        old.adds(0.0, ends[-1:], embedding)
        old.adds(1.0, ends, -token, by_value=True)
        old.straight(1.0, (0.0, 1.0))
        new = _Piece(tally, F, layer, of_distance[:, a], space, distance, f"layer L+2: distance of token {a}")
        new.adds(0.0, everything, -distance, by_value=True)
        new.straight(0.0, (0.0, torch.inf))
        new.adds(1.0, none, token + embedding)
        new.adds(1.0, more, -distance, by_value=True)
        new.straight(1.0, (0.0, 1.0), (1.0, torch.inf))


class _Piece:
    """The hidden units of layer L+2 that read one coordinate and M, [units] of bool, and what they make of it."""

    def __init__(
        self, tally: Tally, F: Arithmetic, layer: FormalLayer, units: Tensor, space: Space, reads: Tensor, what: str
    ) -> None:
        self.tally, self.F, self.layer, self.units, self.reads, self.what = tally, F, layer, units, reads, what
        self.one, self.M = space.unit("one"), space.unit("M")

    def adds(self, mask: float, values: Tensor, wanted: Tensor, by_value: bool = False) -> None:
        """Counts for each value of the coordinate whether the units add ``wanted`` [size], times the value or not, and
        nothing cancels."""
        what, W2 = f"{self.what}, M={mask:.0f}", self.layer.W2[:, self.units]
        for some in values.double().split(ROWS):
            hidden = _hidden(self.F, self.layer, self.units, self.states(mask, some))
            written = (W2[:, (hidden != 0).any(0)] != 0).any(1)  # [size]
            factor = some if by_value else torch.ones_like(some)
            right = factor[:, None] * wanted[written]
            self.tally.equal(f"{what}, value {some[0]:g} and on", self.F.matmul(hidden, W2[written].T), right)
            without_signs = self.F.matmul(hidden, W2[written].abs().T)
            self.tally.equal(f"{what}, value {some[0]:g} and on: nothing cancels", without_signs, right.abs())
            missing = bool(wanted[~written].any()) and bool(factor.any())
            self.tally.holds(f"{what}, value {some[0]:g} and on: what is not written", not missing)

    def straight(self, mask: float, *intervals: tuple[float, float]) -> None:
        """Counts whether no unit bends inside the intervals."""
        slope = self.layer.W1[self.units] @ self.reads
        start = self.layer.W1[self.units] @ (self.one + mask * self.M) + self.layer.b1[self.units]
        bend = -start / slope
        for low, high in intervals:
            self.tally.holds(f"{self.what}, M={mask:.0f}: units bend", (bend <= low) | (bend >= high))

    def states(self, mask: float, values: Tensor) -> Tensor:
        return self.one + mask * self.M + values[:, None] * self.reads


def _reads(layer: FormalLayer, space: Space, *names: str) -> Tensor:
    """Tells which hidden units read nothing but these coordinates: [units]."""
    read = space.read(*names).any(0)  # [size]
    return ~(layer.W1[:, ~read] != 0).any(1)


def _run(F: Arithmetic, layer: FormalLayer, units: Tensor, states: Tensor) -> Tensor:
    """Returns what these units add, without b2: [cases, size] -> [cases, size]."""
    return F.matmul(_hidden(F, layer, units, states), layer.W2[:, units].T)


def _hidden(F: Arithmetic, layer: FormalLayer, units: Tensor, states: Tensor) -> Tensor:
    return F.add(F.matmul(states, layer.W1[units].T), layer.b1[units]).relu()


def _count(space: Space, number: int) -> Tensor:
    return signed_binary(torch.tensor(number), len(space.read("count")))
