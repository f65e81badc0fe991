"""Small ReLU networks that compute with bits: AND, OR and MAJORITY of any fan-in, incrementing, comparing.

Each is a ``Network``, weights that run over the reals, ``network(x)``, or in F_s, ``network.at(s, x)``. The gates
(Lemma E.5) take bits 0 and 1; numbers are written as ±1, least significant bit first, by ``signed_binary``.

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
    """Affine maps (W, b) with a ReLU after each but the last."""

    layers: tuple[tuple[Tensor, Tensor], ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Hidden units of each layer."""
        return tuple(len(b) for _, b in self.layers[:-1])

    def __call__(self, x: Tensor) -> Tensor:
        """Over the reals: [..., inputs] -> [..., outputs]."""
        for i, (W, b) in enumerate(self.layers):
            x = (x.relu() if i else x.double()) @ W.T + b
        return x

    def at(self, s: int, x: Tensor) -> Tensor:
        """In F_s, every operation rounded: [batch, inputs] -> [batch, outputs]."""
        F = FixedPoint(s)
        for i, (W, b) in enumerate(self.layers):
            x = F.add(F.matmul(x.relu() if i else x.double(), W.T), b)
        return x


def signed_binary(numbers: Tensor, bits: int) -> Tensor:
    """sbin: each number as ``bits`` times ±1, least significant first; [...] int64 -> [..., bits].

    >>> signed_binary(torch.tensor(6), 4).tolist()
    [-1.0, 1.0, 1.0, -1.0]
    """
    return (numbers[..., None] >> torch.arange(bits) & 1).double() * 2 - 1


def interleave(a: Tensor, b: Tensor) -> Tensor:
    """a^b: a_1, b_1, a_2, b_2, … of the last dimension."""
    return torch.stack([a, b], dim=-1).flatten(-2)


def gate_inputs(bits: Tensor) -> Tensor:
    """x_1, 1, x_2, 1, …, what the gates are given: [..., n] -> [..., 2n]."""
    return interleave(bits.double(), torch.ones_like(bits, dtype=torch.float64))


def and_gate(n: int) -> Network:
    """One unit, in F_1: relu(1 + Σ (x_i - 1)). A sum that has saturated at -B_1 = -1.5 comes back to -1.5 with each
    x_i = 1, and never to 0."""
    return _gate(interleave(torch.ones(1, n), -torch.ones(1, n)), biases=[1.0], outgoing=[1.0])


def or_gate(n: int) -> Network:
    """Two units, in F_1: 1 - relu(1 - Σ x_i)."""
    return _gate(interleave(-torch.tensor([[0.0], [1.0]]).expand(2, n), torch.zeros(2, n)), [1.0, 1.0], [1.0, -1.0])


def majority_gate(n: int) -> Network:
    """Four units, in F_s with s = ⌈log2 n⌉: whether S = Σ (x_i - ½) > 0, as twice relu(S) - relu(S - ½). Nothing is
    larger than (n + 1)/2 on the way, so nothing saturates. (n ≤ 4·(2^s - 1) is enough, tried on all words to n = 16;
    with n = 2^{s+2}, zeros first and then as many ones saturate and count as a majority.)"""
    half_each = interleave(torch.ones(4, n), -0.5 * torch.ones(4, n))
    return _gate(half_each, biases=[0.0, -0.5, 0.0, -0.5], outgoing=[1.0, -1.0, 1.0, -1.0])


def increment(bits: int) -> Network:
    """sbin(x) ↦ sbin(x + 1) for x ≤ 2^bits - 2, in F_s with s = bits.

    Bit i is flipped where the carry c_i is 1, and c_i is the AND of all lower bits.
    """
    lower = torch.ones(bits, bits, dtype=torch.float64).tril(-1)
    count = lower.sum(-1)
    one = torch.eye(bits, dtype=torch.float64)
    # units: bit i as 0 or 1; c_i = relu(1 + Σ_{j<i} (σ_j - 1)/2)
    bits_and_carries = torch.cat([one, lower / 2]), torch.cat([zeros(bits), 1 - count / 2])
    # units: bit only, carry only, both, neither
    signs = torch.tensor([[1, -1], [-1, 1], [1, 1], [-1, -1]], dtype=torch.float64)
    cases = torch.kron(signs, one), torch.tensor([0, 0, -1, 1], dtype=torch.float64).repeat_interleave(bits)
    outcome = torch.kron(torch.tensor([[1, 1, -1, -1]], dtype=torch.float64), one), zeros(bits)
    return Network((bits_and_carries, cases, outcome))


def comparison(bits: int) -> Network:
    """(sbin(x), sbin(y)) ↦ 1[x > y], in F_s with s = bits.

    At one bit x has 1 and y has 0, and at every higher bit they agree. (Higher: the paper's "j < i" would be right with
    the most significant bit first.)
    """
    one, higher = torch.eye(bits, dtype=torch.float64), torch.ones(bits, bits, dtype=torch.float64).triu(1)
    # units: x_i > y_i; x_i < y_i
    differences = torch.kron(torch.tensor([[0.5, -0.5], [-0.5, 0.5]], dtype=torch.float64), one), zeros(2 * bits)
    # unit i: x_i > y_i, less the number of higher bits that differ
    decided_here = torch.cat([one - higher, -higher], dim=1), zeros(bits)
    return Network((differences, decided_here, (torch.ones(1, bits, dtype=torch.float64), zeros(1))))


def _gate(W1: Tensor, biases: list[float], outgoing: list[float]) -> Network:
    first = W1.double(), torch.tensor(biases, dtype=torch.float64)
    return Network((first, (torch.tensor([outgoing], dtype=torch.float64), zeros(1))))
