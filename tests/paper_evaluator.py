"""The paper's transformer, evaluated from its definitions alone: saved weights in, distributions out.

Nothing here is shared with what built the weights. Over the reals it computes in numpy's float64; in F_s in Python
integers, in units of 2^-s (and 2^-2s for products), with exp from the standard library's decimals.

An input of tokens v_1 … v_n becomes x_i = θ_TE(v_i) + θ_PE(i). A layer is x + MHA(x), then x + FF(x); a head has the
scores ⟨W_Q x_i, W_K x_j⟩ for j ≤ i; FF(x) = W_2 relu(W_1 x + b_1) + b_2; logits are θ_OUTPUT x.
"""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[Any]
"""Of float64 over the reals; of Python integers in F_s."""


def order_of_layers(plan: str) -> list[int]:
    """Returns the layers in the order in which a plan such as 1x4, 3x2 or 1x(1,1,4) runs them."""
    order: list[int] = []
    first = 0
    for block in plan.split("+"):
        k, loops = re.fullmatch(r"(\d+)x(.+)", block).groups()  # type: ignore[union-attr]
        for count in loops.strip("()").split(","):
            order += list(range(first, first + int(k))) * int(count)
            first += int(k)
    return order


class Reals:
    """Numpy's float64, with the largest score subtracted before exp, which changes nothing over the reals."""

    def numbers(self, weights: Array) -> Array:
        return weights.astype(np.float64)

    def matmul(self, a: Array, b: Array) -> Array:
        return a @ b

    def add(self, a: Array, b: Array) -> Array:
        return a + b

    def softmax(self, scores: Array) -> Array:
        powers: Array = np.exp(scores - scores.max())
        return powers / powers.sum()


class Integers:
    """F_s: a number k·2^-s is the integer k, at most 4^s - 1 in size."""

    def __init__(self, s: int) -> None:
        self.s, self.largest = s, 4**s - 1

    def numbers(self, weights: Array) -> Array:
        made = np.empty(weights.shape, dtype=object)
        for at, value in np.ndenumerate(weights):
            k = Fraction(float(value)) * 2**self.s
            assert k.denominator == 1, "a weight is not in F_s"
            assert abs(k) <= self.largest, "a weight is not in F_s"
            made[at] = int(k)
        return made

    def saturate(self, k: int) -> int:
        return max(-self.largest, min(self.largest, k))

    def divided(self, k: int, by: int) -> int:
        """Returns k / by to the nearest integer, ties to the smaller magnitude."""
        size, half = divmod(abs(k), abs(by))
        size += 2 * half > abs(by)
        return self.saturate(size if (k < 0) == (by < 0) else -size)

    def matmul(self, a: Array, b: Array) -> Array:
        made = np.empty((a.shape[0], b.shape[1]), dtype=object)
        for i in range(a.shape[0]):
            row = [(k, x) for k, x in enumerate(a[i]) if x]
            for j in range(b.shape[1]):
                total = 0
                for k, x in row:
                    total = self.saturate(total + self.divided(x * b[k, j], 2**self.s))
                made[i, j] = total
        return made

    def add(self, a: Array, b: Array) -> Array:
        return np.vectorize(lambda x, y: self.saturate(x + y), otypes=[object])(a, b)

    def softmax(self, scores: Array) -> Array:
        powers = [_exp(int(k), self.s, self.largest) for k in scores]
        total = 0
        for power in powers:
            total = self.saturate(total + power)
        return np.array([self.divided(power * 2**self.s, total) if total else 0 for power in powers], dtype=object)


@cache
def _exp(k: int, s: int, largest: int) -> int:
    """Returns exp(k·2^-s) in units of 2^-s, rounded; it is never a tie."""
    with decimal.localcontext() as context:
        context.prec = 60
        exact = (decimal.Decimal(k) / 2**s).exp() * 2**s
        return min(largest, int(exact.to_integral_value(decimal.ROUND_HALF_DOWN)))


class SavedTransformer:
    """A directory that ``loopt prove --save`` wrote."""

    def __init__(self, directory: Path, s: int | None = None) -> None:
        self.arithmetic: Reals | Integers = Reals() if s is None else Integers(s)
        config = json.loads((directory / "config.json").read_text())
        weights = load_file(directory / "weights.safetensors")
        self.order, self.heads = order_of_layers(config["plan"]), config["n_heads"]
        self.width = config["head_dim"]
        self.weights = {name: self.arithmetic.numbers(weight) for name, weight in weights.items()}

    def logits(self, tokens: Sequence[int]) -> Array:
        """Returns the logits at every position, [n, |V|]."""
        A, w = self.arithmetic, self.weights
        x = A.add(w["token_embedding.weight"][list(tokens)], w["position_embedding.weight"][: len(tokens)])
        for layer in self.order:
            x = A.add(x, self._attention(x, f"loop.layers.{layer}.attention."))
            at = f"loop.layers.{layer}.feed_forward."
            hidden = A.add(A.matmul(x, w[at + "up.weight"].T), w[at + "up.bias"])
            hidden = np.where(hidden > 0, hidden, hidden * 0)
            x = A.add(x, A.add(A.matmul(hidden, w[at + "down.weight"].T), w[at + "down.bias"]))
        return A.matmul(x, w["readout_projection.weight"].T)

    def _attention(self, x: Array, at: str) -> Array:
        A, n, d = self.arithmetic, len(x), x.shape[1]
        qkv = self.weights[at + "qkv.weight"].reshape(3, self.heads, self.width, d)
        output = self.weights[at + "output.weight"].reshape(d, self.heads, self.width)
        total = x * 0
        for h in range(self.heads):
            query, key, value = (A.matmul(x, qkv[kind, h].T) for kind in range(3))
            scores = A.matmul(query, key.T)
            weights = np.stack(
                [np.concatenate([A.softmax(scores[i, : i + 1]), scores[i, i + 1 :] * 0]) for i in range(n)]
            )
            total = A.add(total, A.matmul(A.matmul(weights, value), output[:, h].T))
        return total

    def answers(self, tokens: Sequence[int]) -> list[int]:
        return [int(row.argmax()) for row in self.logits(tokens)]
