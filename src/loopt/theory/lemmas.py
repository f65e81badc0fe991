"""The appendix's lemmas that are not about binary numbers: one-hot attention, shift, argmax, decoding, control gate.

Lemmas E.1 and E.2, [exp(-B_s)]_s = 0 and [exp(B_s)]_s = B_s, are facts about ``FixedPoint.exp``. (The numbers are those
of Li et al. 2024, whom the paper follows.) With the first, and sums that saturate, attention is one-hot (Lemma E.3):

>>> queries, keys = one_hot_codes(torch.arange(4), bits=2, s=1)
>>> F = FixedPoint(1)
>>> F.exp(F.matmul(queries, keys.T)).tolist()
[[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopt.theory.formal import Head, Space, zeros
from loopt.theory.gates import Network, interleave, signed_binary
from loopt.theory.precision import FixedPoint


def one_hot_codes(positions: Tensor, bits: int, s: int) -> tuple[Tensor, Tensor]:
    """Returns queries sbin(i)^1 and keys B_s·(sbin(j)^(-1)), [n, 2·bits] each, with [exp⟨q_i, k_j⟩_s]_s = 1[i=j].

    A bit that agrees adds +B_s and then -B_s, which is 0. One that differs takes the sum down to -B_s, where every
    later bit leaves it. This hangs on the order of the terms, and s = 1 is enough for any number of bits.
    """
    code = signed_binary(positions, bits)
    return interleave(code, torch.ones_like(code)), FixedPoint(s).largest * interleave(code, -torch.ones_like(code))


def interleaved(code: Tensor, one: Tensor) -> Tensor:
    """Returns the weights [2·bits, d] that read code^one, from those for the code [bits, d] and for a constant [d]."""
    return torch.stack([code, one.expand_as(code)], dim=1).flatten(0, 1)


def shift_space(d: int, n: int) -> Space:
    """Returns the coordinates that ``shift_head`` reads: x, and ⌈log2 n⌉ + 1 bits each of i - 1 and of f(i) - 1."""
    bits = max(n - 1, 0).bit_length() + 1
    return Space(x=d, here=bits, before=bits)


def shift_codes(n: int) -> Tensor:
    """Returns what positions 1 … n hold after x: sbin(i - 1) and sbin(f(i) - 1), f(i) = [i-2]_+ + 1; [n, 2·bits]."""
    bits = shift_space(0, n).size // 2
    here = torch.arange(n)
    return torch.cat([signed_binary(here, bits), signed_binary((here - 1).clamp(min=0), bits)], dim=-1)


def shift_head(d: int, n: int, s: int) -> Head:
    """Builds the head that in F_s returns (x_1, x_1, x_2, …, x_{n-1}).

    The highest bit of i - 1 < 2^⌈log2 n⌉ is always -1, so queries and keys can be interleaved with it as a constant.
    """
    space = shift_space(d, n)
    here, before = space.read("here"), space.read("before")
    one = -here[-1]
    return Head(
        query=interleaved(before[:-1], one),
        key=FixedPoint(s).largest * interleaved(here[:-1], -one),
        value=space.read("x"),
        output=space.read("x"),
    )


def argmax_network(d: int, s: int) -> Network:
    """Builds the network x ↦ e_k for x in F_s with a unique largest x_k: three layers, at most d² wide.

    g_i = 2^s·relu(2^-s - Σ_{j≠i} relu(x_j - x_i)). F_s does not have 2^s; two hidden units of 2^{s-1} make it.
    """
    i, j = _pairs(d)
    one = torch.eye(d, dtype=torch.float64)
    differences = one[j] - one[i], zeros(len(i))
    return Network((differences, *_select(d, s)))


def decode_embed_network(output: Tensor, tokens: Tensor, s: int) -> Network:
    """Builds the network x ↦ the embedding of the token with the unique largest logit: five layers, |Σ|² wide.

    ``output`` is θ_OUTPUT [|Σ|, d] and ``tokens`` is θ_TE [|Σ|, d], with entries in F_s.
    """
    size = len(output)
    i, j = _pairs(size)
    one = torch.eye(size, dtype=torch.float64)
    logits = torch.cat([output, -output]), zeros(2 * size)  # their positive and negative parts
    differences = torch.cat([one[j] - one[i], one[i] - one[j]], dim=1), zeros(len(i))
    return Network((logits, differences, *_select(size, s), (tokens.T, zeros(tokens.shape[1]))))


def control_gate(s: int) -> Network:
    """Builds the network (x, y, M, 1-M) ↦ Mx + (1-M)y: two layers, four hidden units.

    F_s does not have 2^s, but B_s closes a unit as well. 1-M is an input, since making it by a bias, as in
    x + B_s·M - B_s, saturates for x > 0.
    """
    B = FixedPoint(s).largest
    units = [[1, 0, 0, -B], [-1, 0, 0, -B], [0, 1, -B, 0], [0, -1, -B, 0]]
    first = torch.tensor(units, dtype=torch.float64), zeros(4)
    return Network((first, (torch.tensor([[1, -1, 1, -1]], dtype=torch.float64), zeros(1))))


def _pairs(d: int) -> tuple[Tensor, Tensor]:
    """Returns all (i, j) with i ≠ j, ordered by i."""
    i, j = (1 - torch.eye(d)).nonzero().unbind(-1)
    return i, j


def _select(d: int, s: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Returns two layers that map relu(x_j - x_i) of all pairs to 1 at the i where all are 0, and to 0 elsewhere."""
    i, _ = _pairs(d)
    largest = -torch.eye(d, dtype=torch.float64)[:, i].repeat(2, 1), torch.full((2 * d,), 2.0**-s, dtype=torch.float64)
    return largest, (2.0 ** (s - 1) * torch.eye(d, dtype=torch.float64).repeat(1, 2), zeros(d))
