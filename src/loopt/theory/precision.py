"""Finite precision: the fixed-point numbers F_s, arithmetic in them, and whole transformers run in them.

F_s = {±k·2^-s : 0 ≤ k ≤ 2^2s - 1}; the largest is B_s = 2^s - 2^-s. Every operation on two numbers is rounded to the
nearest number of F_s, ties to the smaller magnitude, and past ±B_s to ±B_s. Sums run from left to right and may
saturate on the way, so the order matters:

>>> F = FixedPoint(2)
>>> F.step, F.largest
(0.25, 3.75)
>>> F.multiply(torch.tensor([0.25, 0.25, 3.0]), torch.tensor([0.5, 0.75, 3.0])).tolist()
[0.0, 0.25, 3.75]
>>> F.sum(torch.tensor([[3.0, 3.0, -3.0], [3.0, -3.0, 3.0]])).tolist()
[0.75, 3.0]

Numbers of F_s are held in float64, which represents them exactly up to s = 25.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.theory.formal import FormalLayer, FormalTransformer, Head

Softmax = Literal["plain", "shifted"]
"""plain: exp(x_j) / Σ exp(x_j), as in the paper; shifted: the largest x is subtracted first, as software does."""

MOST_BITS = 25
_MANY_TERMS = 256
"""From so many terms on, a product of matrices looks for rows of which most are 0, such as those of hidden units."""
_SCORES_AT_ONCE = 100_000
"""Attention takes as many scores at a time, which fit into a processor's cache: n^2 of them take gigabytes."""
_PRODUCTS_EXACT_TO = 17
"""Up to this s, rounding a product or quotient below B_s to float64 first cannot move it onto a tie of F_s."""


@dataclass(frozen=True)
class FixedPoint:
    """F_s and its arithmetic, elementwise on float64 tensors that hold numbers of F_s."""

    s: int

    def __post_init__(self) -> None:
        if not 1 <= self.s <= MOST_BITS:
            raise InputError(f"precision s={self.s}: allowed is 1 to {MOST_BITS}")

    @property
    def step(self) -> float:
        """Returns 2^-s, the smallest positive number."""
        return 2.0**-self.s

    @property
    def largest(self) -> float:
        """Returns B_s."""
        return 2.0**self.s - self.step

    def contains(self, numbers: Tensor) -> bool:
        return torch.equal(self.round(numbers), numbers.double())

    def round(self, x: Tensor, rest: Tensor | None = None) -> Tensor:
        """Returns [x]_s. Where x is itself rounded, ``rest`` has the sign of the exact value minus x."""
        x = x.double()
        in_steps = x.abs().mul_(2.0**self.s)
        steps = (in_steps - 0.5).ceil_()  # a tie goes down
        if rest is not None:
            above_a_tie = (in_steps - steps == 0.5) & (rest * x.sign() > 0)
            steps += above_a_tie
        steps.clamp_(max=4.0**self.s - 1)
        return steps.mul_(self.step).copysign_(x).add_(0.0)  # + 0 turns -0 into 0

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return (a.double() + b).clamp_(-self.largest, self.largest)  # sums lie on the grid and can only saturate

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        product = a.double() * b
        return self.round(product, self._rest_of_product(a, b, product))

    def divide(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns [a / b]_s. The paper does not define a / 0; here it is 0."""
        a, b = a.double(), b.double()
        quotient = torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))
        if self.s <= _PRODUCTS_EXACT_TO:
            return self.round(quotient)
        back = quotient * b
        rest = (a - back) - _product_error(quotient, b, back)
        return self.round(quotient, rest * b.sign())

    def exp(self, x: Tensor) -> Tensor:
        """Returns [exp(x)]_s, for which no tie exists.

        >>> F = FixedPoint(3)
        >>> F.exp(torch.tensor([-F.largest, 0.0, F.largest])).tolist() == [0.0, 1.0, F.largest]
        True
        """
        return self.round(x.double().exp())

    def sum(self, terms: Tensor) -> Tensor:
        """Returns the sum over the last dimension, taken from left to right."""
        if bool((terms.abs().sum(-1) <= self.largest).all()):
            return terms.sum(-1)  # nothing on the way can saturate, so the order does not matter
        total = torch.zeros(terms.shape[:-1], dtype=torch.float64)
        for term in terms.unbind(-1):
            total.add_(term).clamp_(-self.largest, self.largest)
        return total

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns a ×_s b, [..., I, K] and [..., K, J] -> [..., I, J]: rounded products, summed from left to right."""
        on_grid = torch.equal(a, a.round()) or torch.equal(b, b.round())  # every product of two numbers of F_s
        if on_grid and bool((a.abs() @ b.abs() <= self.largest).all()):
            return a @ b  # no partial sum saturates
        if b.dim() == 2 and a.shape[-1] > _MANY_TERMS:
            few = int((a != 0).sum(-1).max())
            if 4 * few < a.shape[-1]:
                return self._matmul_of_sparse_rows(a, b, few)
        shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
        total = torch.zeros(shape, dtype=torch.float64)
        on_grid = on_grid and float(a.abs().max() * b.abs().max()) <= self.largest
        for k in _indices_that_count(a, b):
            left, right = a[..., :, k, None], b[..., None, k, :]
            total = total.addcmul_(left, right) if on_grid else total.add_(self.multiply(left, right))
            total.clamp_(-self.largest, self.largest)
        return total

    def _matmul_of_sparse_rows(self, a: Tensor, b: Tensor, few: int) -> Tensor:
        """Returns the product where a row of a has at most ``few`` numbers that are not 0, which alone count."""
        rows = a.reshape(-1, a.shape[-1])
        order = torch.arange(rows.shape[-1], 0, -1, dtype=torch.int32)  # the first of those that count is the largest
        at = torch.where(rows != 0, order, 0).topk(few, dim=-1).indices if few else None
        total = torch.zeros((len(rows), b.shape[-1]), dtype=torch.float64)
        for k in range(few):
            assert at is not None
            product = self.multiply(rows.gather(1, at[:, k, None]), b[at[:, k]])
            total.add_(product).clamp_(-self.largest, self.largest)
        return total.view(*a.shape[:-1], b.shape[-1])

    def softmax(self, scores: Tensor, visible: Tensor | None = None, kind: Softmax = "plain") -> Tensor:
        """Returns [[exp(x_j)]_s / Σ_j [exp(x_j)]_s]_s over the ``visible`` j of the last dimension. Where every
        exponential rounds to 0, the paper leaves it undefined, and here it is 0."""
        if kind == "shifted":
            seen = scores if visible is None else scores.masked_fill(~visible, -torch.inf)
            scores = self.add(scores, -seen.amax(-1, keepdim=True))
        powers = self.exp(scores)
        if visible is not None:
            powers = powers * visible
        return self.divide(powers, self.sum(powers)[..., None])

    def _rest_of_product(self, a: Tensor, b: Tensor, product: Tensor) -> Tensor | None:
        return None if self.s <= _PRODUCTS_EXACT_TO else _product_error(a.double(), b.double(), product)


class Reals:
    """The same operations over the reals, to the rounding of float64."""

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    def softmax(self, scores: Tensor, visible: Tensor | None = None, kind: Softmax = "shifted") -> Tensor:
        return (scores if visible is None else scores.masked_fill(~visible, -torch.inf)).softmax(-1)


Arithmetic = FixedPoint | Reals


def arithmetic(s: int | None) -> Arithmetic:
    """Returns F_s, or the reals where s is None."""
    return Reals() if s is None else FixedPoint(s)


def forward(
    formal: FormalTransformer,
    ids: Tensor,
    s: int | None,
    softmax: Softmax = "plain",
    states: list[Tensor] | None = None,
) -> Tensor:
    """Runs a transformer in F_s, every operation rounded, or in float64 where s is None: ids [B, n] -> logits [B, n,
    V]. Appends the residual stream after each loop, [B, n, d], to ``states``. Raises an InputError where a weight is
    not in F_s."""
    F = arithmetic(s)
    if s is not None:
        check_weights(formal, s)
    x = F.add(formal.tokens[ids], formal.positions[: ids.shape[1]])  # [B, n, d]
    for one_pass in formal.plan.passes:
        for index in one_pass.layers:
            layer = formal.layers[index]
            x = F.add(x, multi_head_attention(F, layer.heads, x, softmax))
            x = F.add(x, feed_forward(F, layer, x))
        if states is not None:
            states.append(x)
    return F.matmul(x, formal.output.T)


def multi_head_attention(F: Arithmetic, heads: tuple[Head, ...], x: Tensor, softmax: Softmax = "plain") -> Tensor:
    """Returns the causal attention of all heads, summed in their order: [B, n, d] -> [B, n, d]."""
    total = torch.zeros_like(x)
    for head in heads:
        total = F.add(total, attention(F, head, x, softmax))
    return total


def attention(F: Arithmetic, head: Head, x: Tensor, softmax: Softmax = "plain") -> Tensor:
    """Returns the causal attention of one head: [B, n, d] -> [B, n, d]."""
    query, key, value = (F.matmul(x, weight.T) for weight in (head.query, head.key, head.value))  # [B, n, d_qk or d_v]
    n, mixed = x.shape[-2], []
    rows = max(1, _SCORES_AT_ONCE // (n * x[..., 0, 0].numel()))
    for start in range(0, n, rows):
        seen = slice(0, start + rows)  # no position sees a later one
        weights = _weights(F, query[..., start : start + rows, :], key[..., seen, :], start, softmax)
        mixed.append(F.matmul(weights, value[..., seen, :]))
    return F.matmul(torch.cat(mixed, dim=-2), head.output)


def attention_weights(F: Arithmetic, head: Head, x: Tensor, softmax: Softmax = "plain") -> Tensor:
    """Returns how much each position attends to each: [B, n, d] -> [B, n, n]."""
    query, key = (F.matmul(x, weight.T) for weight in (head.query, head.key))  # [B, n, d_qk]
    return _weights(F, query, key, 0, softmax)


def _weights(F: Arithmetic, query: Tensor, key: Tensor, start: int, softmax: Softmax) -> Tensor:
    """Returns how much each position from ``start`` on attends to each: [B, rows, d_qk], [B, n, d_qk] -> [B, rows,
    n]."""
    scores = F.matmul(query, key.mT)
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(start)
    return F.softmax(scores, visible, softmax)


def attention_maps(formal: FormalTransformer, ids: Tensor, s: int | None = None) -> list[list[Tensor]]:
    """Returns the weights [n, n] of every head of each layer that runs, in order, on one input [n]."""
    F = arithmetic(s)
    x = F.add(formal.tokens[ids[None]], formal.positions[: len(ids)])
    maps = []
    for step in formal.plan.steps:
        layer = formal.layers[step.layer]
        maps.append([attention_weights(F, head, x)[0] for head in layer.heads])
        x = F.add(x, multi_head_attention(F, layer.heads, x))
        x = F.add(x, feed_forward(F, layer, x))
    return maps


def feed_forward(F: Arithmetic, layer: FormalLayer, x: Tensor) -> Tensor:
    """Returns W_2 relu(W_1 x + b_1) + b_2: [B, n, d] -> [B, n, d]."""
    hidden = F.add(F.matmul(x, layer.W1.T), layer.b1).relu_()  # [B, n, d_ff]
    return F.add(F.matmul(hidden, layer.W2.T), layer.b2)


def check_weights(formal: FormalTransformer, s: int) -> None:
    """Raises an InputError where a weight is not a number of F_s."""
    wrong = weight_outside(formal, s)
    if wrong:
        raise InputError(wrong)


def weight_outside(formal: FormalTransformer, s: int) -> str:
    """Returns a line about the first weight that is not a number of F_s, and an empty one where all are."""
    F = FixedPoint(s)
    weights = {"tokens": formal.tokens, "positions": formal.positions, "output": formal.output}
    for i, layer in enumerate(formal.layers):
        weights |= {f"layer {i}: {name}": getattr(layer, name) for name in ("W1", "b1", "W2", "b2")}
        for h, head in enumerate(layer.heads):
            names = ("query", "key", "value", "output")
            weights |= {f"layer {i}, head {h}: {name}": getattr(head, name) for name in names}
    for name, weight in weights.items():
        if not F.contains(weight):
            wrong = weight[F.round(weight) != weight][0].item()
            return f"{name} holds {wrong}, which is not in F_{s}: multiples of 2^-{s} up to {F.largest}"
    return ""


def _indices_that_count(a: Tensor, b: Tensor) -> list[int]:
    """Returns the k at which neither a[..., k] nor b[..., k, :] is all 0; the others add nothing."""
    in_a = (a != 0).flatten(0, -2).any(0)
    in_b = (b != 0).any(-1).flatten(0, -2).any(0) if b.dim() > 2 else (b != 0).any(-1)
    return (in_a & in_b).nonzero().flatten().tolist()


def _product_error(a: Tensor, b: Tensor, product: Tensor) -> Tensor:
    """Returns a·b - product exactly, where product is a·b rounded to float64 (Dekker's method)."""
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _upper_half(x: Tensor) -> Tensor:
    """Returns the upper 26 of the 53 bits of x."""
    scaled = x * (2.0**27 + 1)
    return scaled - (scaled - x)
