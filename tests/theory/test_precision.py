"""Arithmetic in F_s is what exact fractions, rounded one by one, give."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction
from typing import Literal

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopt import LoopPlan
from loopt.errors import InputError
from loopt.theory import precision
from loopt.theory.formal import FormalLayer, FormalTransformer, Head
from loopt.theory.precision import MOST_BITS, FixedPoint, forward

pytestmark = pytest.mark.slow

Rows = list[list[Fraction]]


class Reference:
    """F_s by its definition, one number at a time."""

    def __init__(self, s: int) -> None:
        self.s, self.most = s, 4**s - 1

    def round(self, x: Fraction) -> Fraction:
        steps = abs(x) * 2**self.s
        down = math.floor(steps)
        nearest = down + (steps - down > Fraction(1, 2))
        return (-1 if x < 0 else 1) * Fraction(min(nearest, self.most), 2**self.s)

    def exp(self, x: Fraction) -> Fraction:
        if abs(x) > 60:  # beyond what any F_s here tells from 0 and from B_s
            return self.round(Fraction(10**30) if x > 0 else Fraction(1, 10**26))
        context = Context(prec=80)
        decimal = context.exp(context.divide(Decimal(x.numerator), Decimal(x.denominator)))
        return self.round(Fraction(decimal))

    def sum(self, terms: list[Fraction]) -> Fraction:
        total = Fraction(0)
        for term in terms:
            total = self.round(total + term)
        return total

    def inner(self, a: list[Fraction], b: list[Fraction]) -> Fraction:
        return self.sum([self.round(x * y) for x, y in zip(a, b, strict=True)])

    def softmax(self, scores: list[Fraction], kind: str) -> list[Fraction]:
        if kind == "shifted":
            scores = [self.round(score - max(scores)) for score in scores]
        powers = [self.exp(score) for score in scores]
        total = self.sum(powers)
        return [self.round(power / total) if total else Fraction(0) for power in powers]

    def times(self, matrix: Tensor, x: list[Fraction]) -> list[Fraction]:
        return [self.inner(row, x) for row in fractions(matrix)]

    def add(self, a: list[Fraction], b: list[Fraction]) -> list[Fraction]:
        return [self.round(x + y) for x, y in zip(a, b, strict=True)]

    def attention(self, head: Head, x: Rows, i: int, kind: str) -> list[Fraction]:
        query = self.times(head.query, x[i])
        keys, values = ([self.times(weight, y) for y in x[: i + 1]] for weight in (head.key, head.value))
        weights = self.softmax([self.inner(query, key) for key in keys], kind)
        mixed = [self.inner(weights, [value[c] for value in values]) for c in range(head.value.shape[0])]
        return self.times(head.output.T, mixed)

    def forward(self, formal: FormalTransformer, ids: list[int], kind: str) -> Rows:
        tokens, positions = fractions(formal.tokens), fractions(formal.positions)
        x = [self.add(tokens[token], positions[i]) for i, token in enumerate(ids)]
        for step in formal.plan.steps:
            layer = formal.layers[step.layer]
            after = []
            for i in range(len(x)):
                heads = [Fraction(0)] * formal.d
                for head in layer.heads:
                    heads = self.add(heads, self.attention(head, x, i, kind))
                y = self.add(x[i], heads)
                hidden = self.add(self.times(layer.W1, y), fractions(layer.b1[None])[0])
                out = self.times(layer.W2, [max(unit, Fraction(0)) for unit in hidden])
                after.append(self.add(y, self.add(out, fractions(layer.b2[None])[0])))
            x = after
        return [self.times(formal.output, y) for y in x]


def fractions(matrix: Tensor) -> Rows:
    return [[Fraction(x) for x in row] for row in matrix.tolist()]


def numbers(s: int, size: int) -> st.SearchStrategy[list[float]]:
    """Numbers of F_s, small, middling and large ones alike."""
    steps = st.one_of(
        st.integers(-8, 8), st.integers(-(2 ** (s + 2)), 2 ** (s + 2)), st.integers(-(4**s) + 1, 4**s - 1)
    ).map(lambda k: max(min(k, 4**s - 1), -(4**s) + 1))
    return st.lists(steps.map(lambda k: k * 2.0**-s), min_size=size, max_size=size)


@st.composite
def precision_and_pairs(draw: st.DrawFn, size: int = 6) -> tuple[int, list[float], list[float]]:
    s = draw(st.integers(1, MOST_BITS))
    return s, draw(numbers(s, size)), draw(numbers(s, size))


@settings(deadline=None)
@given(precision_and_pairs())
def test_one_operation(drawn: tuple[int, list[float], list[float]]) -> None:
    s, a, b = drawn
    F, reference = FixedPoint(s), Reference(s)
    x, y = torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
    pairs = [(Fraction(p), Fraction(q)) for p, q in zip(a, b, strict=True)]
    assert F.add(x, y).tolist() == [reference.round(p + q) for p, q in pairs]
    assert F.multiply(x, y).tolist() == [reference.round(p * q) for p, q in pairs]
    assert F.divide(x, y).tolist() == [reference.round(p / q) if q else 0 for p, q in pairs]
    assert F.exp(x).tolist() == [reference.exp(p) for p, _ in pairs]
    assert F.sum(x).item() == reference.sum([p for p, _ in pairs])


@pytest.mark.parametrize("s", [18, 21, 25])
def test_products_and_quotients_beside_a_tie(s: int) -> None:
    """Where float64 would round onto a tie of F_s first: k·(2^-s) is a tie plus or minus less than float64 resolves."""
    F, reference = FixedPoint(s), Reference(s)
    generator = torch.Generator().manual_seed(0)
    k = torch.randint(2 ** (s - 1), 2 ** (2 * s), (4_000,), generator=generator).double()
    a, odd = k * F.step, 2 * torch.randint(2 ** (2 * s - 1), (4_000,), generator=generator).double() + 1
    b = F.round(odd * F.step / 2 / a)  # a·b is near an odd number of half steps
    for op, exact in ((F.multiply, Fraction.__mul__), (F.divide, Fraction.__truediv__)):
        rounded = op(a, b).tolist()
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        expected = [reference.round(exact(Fraction(p), Fraction(q))) if q or op == F.multiply else 0 for p, q in pairs]
        assert rounded == expected


def test_ties_go_to_the_smaller_magnitude_and_what_is_too_large_to_the_largest() -> None:
    F = FixedPoint(3)
    x = torch.tensor([0.0625, 0.0626, 0.1875, -0.0625, -0.1875, 7.9375, 1e300, -math.inf], dtype=torch.float64)
    assert F.round(x).tolist() == [0, 0.125, 0.125, 0, -0.125, 7.875, 7.875, -7.875]


@pytest.mark.parametrize("s", range(1, 6))
def test_every_exponential(s: int) -> None:
    F, reference = FixedPoint(s), Reference(s)
    x = torch.arange(-(4**s) + 1, 4**s, dtype=torch.float64) * F.step
    assert F.exp(x).tolist() == [reference.exp(Fraction(p)) for p in x.tolist()]


@st.composite
def precision_and_matrices(draw: st.DrawFn) -> tuple[int, Tensor, Tensor]:
    s = draw(st.sampled_from([1, 2, 3, 5, 19]))
    i, k, j = (draw(st.integers(1, 4)) for _ in range(3))
    small = st.lists(st.integers(-1, 1).map(float), min_size=k, max_size=k)  # what an ordinary product is right for
    rows = draw(st.lists(st.one_of(numbers(s, k), small), min_size=i, max_size=i))
    columns = draw(st.lists(st.one_of(numbers(s, k), small), min_size=j, max_size=j))
    return s, torch.tensor(rows, dtype=torch.float64), torch.tensor(columns, dtype=torch.float64).T


A_PRODUCT_SATURATES = (2, torch.tensor([[-1.0, 3.0]]).double(), torch.tensor([[3.75], [3.75]]).double())


@settings(deadline=None)
@given(precision_and_matrices())
@example(A_PRODUCT_SATURATES)
def test_matrix_product(drawn: tuple[int, Tensor, Tensor]) -> None:
    s, a, b = drawn
    reference = Reference(s)
    expected = [[reference.inner(row, column) for column in fractions(b.T)] for row in fractions(a)]
    assert FixedPoint(s).matmul(a, b).tolist() == expected
    assert FixedPoint(s).matmul(torch.stack([a, -a]), b).tolist()[0] == expected
    batched = FixedPoint(s).matmul(torch.stack([torch.zeros_like(a), a]), torch.stack([b, b]))
    assert batched.tolist()[1] == expected


@settings(max_examples=30, deadline=None)
@given(precision_and_pairs(), st.sampled_from(["plain", "shifted"]))
def test_softmax(drawn: tuple[int, list[float], list[float]], kind: Literal["plain", "shifted"]) -> None:
    s, a, b = drawn
    F, reference = FixedPoint(s), Reference(s)
    scores = torch.tensor([a, b], dtype=torch.float64)
    visible = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    one, other = F.softmax(scores, visible, kind).tolist()
    assert one == reference.softmax([Fraction(x) for x in a], kind)
    assert other == [*reference.softmax([Fraction(x) for x in b[:4]], kind), 0, 0]


@pytest.mark.parametrize("kind", ["plain", "shifted"])
@pytest.mark.parametrize(("s", "scores_at_once"), [(1, 100), (2, 100), (4, 100), (9, 100), (4, 1), (4, 16), (4, 24)])
def test_a_whole_transformer(
    s: int, kind: Literal["plain", "shifted"], scores_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_SCORES_AT_ONCE", scores_at_once)  # 4, 1, 2 and 3 rows of 4 at a time
    F, generator = FixedPoint(s), torch.Generator().manual_seed(s)

    def some(*shape: int) -> Tensor:
        return F.round(torch.randn(shape, dtype=torch.float64, generator=generator))

    layers = tuple(
        FormalLayer(
            tuple(Head(some(3, 4), some(3, 4), some(2, 4), some(2, 4)) for _ in range(2)),
            some(5, 4),
            some(5),
            some(4, 5),
            some(4),
        )
        for _ in range(3)
    )
    formal = FormalTransformer(LoopPlan.parse("2x2+1x1"), some(6, 4), some(7, 4), layers, some(6, 4))
    ids = torch.randint(6, (2, 4), generator=generator)
    states: list[Tensor] = []
    logits = forward(formal, ids, s, kind, states)
    assert len(states) == 3
    torch.testing.assert_close(F.matmul(states[-1], formal.output.T), logits, rtol=0, atol=0)
    for word, found in zip(ids.tolist(), logits, strict=True):
        assert found.tolist() == Reference(s).forward(formal, word, kind)


def test_weights_outside_are_refused() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    layer = FormalLayer((Head(one, one, one, one),), one, one[0], 0.3 * one, one[0])
    formal = FormalTransformer(LoopPlan.parse("1x1"), one, one, (layer,), one)
    with pytest.raises(InputError, match=r"layer 0: W2 holds 0\.3, which is not in F_4: multiples of 2\^-4 up to 15"):
        forward(formal, torch.zeros(1, 1, dtype=torch.int64), 4)
    with pytest.raises(InputError, match="precision s=26: allowed is 1 to 25"):
        FixedPoint(26)
