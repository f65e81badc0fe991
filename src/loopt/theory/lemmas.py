"""The appendix's lemmas that are not about bits: one-hot attention, shifting, argmax, decoding, a control gate.

Lemmas E.1 and E.2 (their numbers in Li et al. 2024, from where the paper has them), [exp(-B_s)]_s = 0 and
[exp(B_s)]_s = B_s, are facts about ``FixedPoint.exp``. With the first, and sums that saturate, attention finds one
position exactly (Lemma E.3):

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
    """Lemma E.3: queries sbin(i)^1 and keys B_s·(sbin(j)^(-1)), [n, 2·bits] each, with [exp⟨q_i, k_j⟩_s]_s = 1[i=j].

    A bit that agrees adds +B_s and -B_s, and the sum is 0 again; one that does not takes it down to -B_s, where every
    further bit ends as well. This needs the order, and no more than s = 1, whatever the number of bits.
    """
    code = signed_binary(positions, bits)
    return interleave(code, torch.ones_like(code)), FixedPoint(s).largest * interleave(code, -torch.ones_like(code))


def interleaved(code: Tensor, one: Tensor) -> Tensor:
    """The weights [2·bits, d] that read code^one, from those that read the code [bits, d] and a constant [d]."""
    return torch.stack([code, one.expand_as(code)], dim=1).flatten(0, 1)


def shift_space(d: int, n: int) -> Space:
    """Where ``shift_head`` finds what it needs: x, and the ⌈log2 n⌉ + 1 bits of i - 1 and of f(i) - 1."""
    bits = max(n - 1, 0).bit_length() + 1
    return Space(x=d, here=bits, before=bits)


def shift_codes(n: int) -> Tensor:
    """What positions 1 … n hold after x: sbin(i - 1) and sbin(f(i) - 1), where f(i) = [i-2]_+ + 1; [n, 2·bits]."""
    bits = shift_space(0, n).size // 2
    here = torch.arange(n)
    return torch.cat([signed_binary(here, bits), signed_binary((here - 1).clamp(min=0), bits)], dim=-1)


def shift_head(d: int, n: int, s: int) -> Head:
    """The shifting layer (x_1, x_1, x_2, …, x_{n-1}) as one head, in F_s.

    The highest bit of i - 1 < 2^⌈log2 n⌉ is always -1: the codes themselves hold the constant that queries and keys
    are interleaved with.
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
    """x ↦ e_k where x_k is the one largest, for x in F_s: three layers, no more than d² wide.

    g_i = 2^s·relu(2^-s - Σ_{j≠i} relu(x_j - x_i)). The factor 2^s is not in F_s; two units of 2^{s-1} make it.
    """
    i, j = _pairs(d)
    one = torch.eye(d, dtype=torch.float64)
    differences = one[j] - one[i], zeros(len(i))
    return Network((differences, *_select(d, s)))


def decode_embed_network(output: Tensor, tokens: Tensor, s: int) -> Network:
    """x ↦ the embedding of the token with the one largest logit ⟨θ_OUTPUT(v), x⟩_s: five layers, |Σ|² wide.

    ``output`` is θ_OUTPUT [|Σ|, d] and ``tokens`` is θ_TE [|Σ|, d], with entries in F_s.
    """
    size = len(output)
    i, j = _pairs(size)
    one = torch.eye(size, dtype=torch.float64)
    logits = torch.cat([output, -output]), zeros(2 * size)  # their positive and negative parts
    differences = torch.cat([one[j] - one[i], one[i] - one[j]], dim=1), zeros(len(i))
    return Network((logits, differences, *_select(size, s), (tokens.T, zeros(tokens.shape[1]))))


def control_gate(s: int) -> Network:
    """(x, y, M, 1-M) ↦ Mx + (1-M)y: two layers, four units.

    F_s has no 2^s, but B_s closes a unit as well. And 1-M is an input of its own: x + B_s·M - B_s, which makes it by a
    bias, saturates for x > 0.
    """
    B = FixedPoint(s).largest
    parts = [[1, 0, 0, -B], [-1, 0, 0, -B], [0, 1, -B, 0], [0, -1, -B, 0]]
    first = torch.tensor(parts, dtype=torch.float64), zeros(4)
    return Network((first, (torch.tensor([[1, -1, 1, -1]], dtype=torch.float64), zeros(1))))


def _pairs(d: int) -> tuple[Tensor, Tensor]:
    """All (i, j) with i ≠ j, ordered by i."""
    i, j = (1 - torch.eye(d)).nonzero().unbind(-1)
    return i, j


def _select(d: int, s: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """relu(x_j - x_i) for all pairs ↦ 1 for the i at which all are 0, and 0 for the others."""
    i, _ = _pairs(d)
    largest = -torch.eye(d, dtype=torch.float64)[:, i].repeat(2, 1), torch.full((2 * d,), 2.0**-s, dtype=torch.float64)
    return largest, (2.0 ** (s - 1) * torch.eye(d, dtype=torch.float64).repeat(1, 2), zeros(d))
