"""Small ReLU networks that compute with binary numbers: the lemmas on incrementing and comparing.

Each is a ``Network``, which runs over the reals as ``network(x)`` and in F_s as ``network.at(s, x)``. ``signed_binary``
writes numbers as bits of ±1, the least significant first.

>>> increment(3)(signed_binary(torch.tensor([3, 4]), 3)).tolist(), signed_binary(torch.tensor([4, 5]), 3).tolist()
([[-1.0, -1.0, 1.0], [1.0, -1.0, 1.0]], [[-1.0, -1.0, 1.0], [1.0, -1.0, 1.0]])
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopt.theory.formal import zeros
from loopt.theory.precision import FixedPoint


@dataclass(frozen=True, eq=False)
class Network:
    """A chain of affine maps (W, b) with a ReLU after each but the last."""

    layers: tuple[tuple[Tensor, Tensor], ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Returns the number of hidden units of each layer."""
        return tuple(len(b) for _, b in self.layers[:-1])

    def __call__(self, x: Tensor) -> Tensor:
        """Runs over the reals: [..., inputs] -> [..., outputs]."""
        for i, (W, b) in enumerate(self.layers):
            x = (x.relu() if i else x.double()) @ W.T + b
        return x

    def at(self, s: int, x: Tensor) -> Tensor:
        """Runs in F_s, every operation rounded: [batch, inputs] -> [batch, outputs]."""
        F = FixedPoint(s)
        for i, (W, b) in enumerate(self.layers):
            x = F.add(F.matmul(x.relu() if i else x.double(), W.T), b)
        return x


def signed_binary(numbers: Tensor, bits: int) -> Tensor:
    """Returns sbin of each number, its bits as ±1 with the least significant first: [...] int64 -> [..., bits].

    >>> signed_binary(torch.tensor(6), 4).tolist()
    [-1.0, 1.0, 1.0, -1.0]
    """
    return (numbers[..., None] >> torch.arange(bits) & 1).double() * 2 - 1


def interleave(a: Tensor, b: Tensor) -> Tensor:
    """Returns a^b, which is a_1, b_1, a_2, b_2, … along the last dimension."""
    return torch.stack([a, b], dim=-1).flatten(-2)


def increment(bits: int) -> Network:
    """Builds the network sbin(x) ↦ sbin(x + 1) for x ≤ 2^bits - 2; it is exact in F_s with s = bits.

    Bit i flips where the carry c_i is 1, and c_i is the AND of all lower bits.
    """
    lower = torch.ones(bits, bits, dtype=torch.float64).tril(-1)
    count = lower.sum(-1)
    one = torch.eye(bits, dtype=torch.float64)
    # hidden units: bit i as 0 or 1; c_i = relu(1 + Σ_{j<i} (σ_j - 1)/2)
    bits_and_carries = torch.cat([one, lower / 2]), torch.cat([zeros(bits), 1 - count / 2])
    # hidden units: bit only, carry only, both, neither
    signs = torch.tensor([[1, -1], [-1, 1], [1, 1], [-1, -1]], dtype=torch.float64)
    cases = torch.kron(signs, one), torch.tensor([0, 0, -1, 1], dtype=torch.float64).repeat_interleave(bits)
    outcome = torch.kron(torch.tensor([[1, 1, -1, -1]], dtype=torch.float64), one), zeros(bits)
    return Network((bits_and_carries, cases, outcome))


def comparison(bits: int) -> Network:
    """Builds the network (sbin(x), sbin(y)) ↦ 1[x > y]; it is exact in F_s with s = bits.

    x > y where x has 1 and y has 0 at some bit and they agree at every higher one. (The paper's "j < i" means higher
    bits only if the most significant bit comes first.)
    """
    one, higher = torch.eye(bits, dtype=torch.float64), torch.ones(bits, bits, dtype=torch.float64).triu(1)
    # hidden units: x_i > y_i; x_i < y_i
    differences = torch.kron(torch.tensor([[0.5, -0.5], [-0.5, 0.5]], dtype=torch.float64), one), zeros(2 * bits)
    # hidden unit i: x_i > y_i, less the number of higher bits that differ
    decided_here = torch.cat([one - higher, -higher], dim=1), zeros(bits)
    return Network((differences, decided_here, (torch.ones(1, bits, dtype=torch.float64), zeros(1))))
