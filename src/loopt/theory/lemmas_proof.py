"""The lemmas of the appendix, each checked on every input of a small size, in F_s.

>>> all(check.exact for check in prove(s=2).checks)
True
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.theory.gates import comparison, increment, signed_binary
from loopt.theory.lemmas import (
    argmax_network,
    control_gate,
    decode_embed_network,
    one_hot_codes,
    shift_codes,
    shift_head,
    shift_space,
)
from loopt.theory.precision import MOST_BITS, FixedPoint, attention
from loopt.theory.proof import Check, Proof, Size, Tally

LARGEST_S = 4
"""Up to this s all pairs of numbers of F_s are tried in a second."""


def every_number(s: int) -> Tensor:
    """Returns all numbers of F_s."""
    return torch.arange(-(4**s) + 1, 4**s, dtype=torch.float64) * 2.0**-s


def check(s: int) -> None:
    require(1 <= s <= LARGEST_S, "s", s, f"1 to {LARGEST_S}, since every pair of numbers is tried", InputError)


def prove(s: int = 3) -> Proof:
    """Checks E.1 to E.3 and the lemmas on shifting, argmax, decoding, the control gate, incrementing and comparing."""
    check(s)
    pairs = torch.cartesian_prod(every_number(s), every_number(s))
    sizes = (
        Size("increment: hidden units of a layer", None, max(increment(8).widths), "O(s): 4 bits, for 8 bits"),
        Size("comparison: hidden units of a layer", None, max(comparison(8).widths), "O(s): 2 bits, for 8 bits"),
        Size("argmax of 3: hidden units of a layer", 9, max(argmax_network(3, s).widths)),
        Size("control gate: hidden units", None, control_gate(s).widths[0], "1-M is an input of its own"),
    )
    checks = (
        _exponentials(),
        _one_hot(),
        _shift(s),
        _argmax(s, pairs),
        _decoding(s),
        _gate(s, pairs),
        _increment(),
        _comparison(),
    )
    notes = (
        "comparison reads the bits above i; as printed, with the least significant bit first, it reads those below",
        "argmax and the gate need 2^s, which is not in F_s: two units of 2^(s-1), or B_s",
    )
    return Proof("The lemmas of the appendix", sizes, checks, {}, notes=notes)


def _exponentials() -> Check:
    tally = Tally()
    for s in range(1, MOST_BITS + 1):
        F = FixedPoint(s)
        both = torch.tensor([[-F.largest, F.largest]], dtype=torch.float64)
        tally.equal(f"s={s}", F.exp(both), torch.tensor([[0.0, F.largest]], dtype=torch.float64))
    return tally.check("E.1, E.2: exp(-B_s) is 0 and exp(B_s) is B_s", f"every s from 1 to {MOST_BITS}", "s")


def _one_hot() -> Check:
    tally = Tally()
    for s in (1, 2, 5):
        for bits in range(1, 9):
            queries, keys = one_hot_codes(torch.arange(2**bits), bits, s)
            F = FixedPoint(s)
            powers = F.exp(F.matmul(queries, keys.T))
            tally.equal(f"s={s}, {bits} bits", powers, torch.eye(2**bits, dtype=torch.float64))
    return tally.check("E.3: attention is one-hot", "every pair of positions of 1 to 8 bits; s = 1, 2, 5", "positions")


def _shift(s: int) -> Check:
    tally, F = Tally(), FixedPoint(s)
    for n in range(1, 66):
        x = F.round(torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(n)))
        held = torch.cat([x, shift_codes(n)], dim=-1)
        found = attention(F, shift_head(3, n, s), held[None])[0][:, shift_space(3, n)["x"]]
        tally.equal(f"n={n}", found, x[[0, *range(n - 1)]])
    return tally.check(f"shift, in F_{s}", "every n from 1 to 65, sampled x", "positions")


def _argmax(s: int, pairs: Tensor) -> Check:
    tally, apart = Tally(), pairs[pairs[:, 0] != pairs[:, 1]]
    wanted = torch.eye(2, dtype=torch.float64)[apart.argmax(-1)]
    tally.equal("over the reals", argmax_network(2, s)(apart), wanted)
    tally.equal(f"in F_{s}", argmax_network(2, s).at(s, apart), wanted)
    return tally.check(f"argmax, in F_{s} and over the reals", "every pair of different numbers", "pairs")


def _decoding(s: int) -> Check:
    tally, F, generator = Tally(), FixedPoint(s), torch.Generator().manual_seed(0)
    output, tokens = (
        F.round(2 ** (s / 2) * torch.randn(4, 2, dtype=torch.float64, generator=generator)) for _ in range(2)
    )
    x = torch.cartesian_prod(*[every_number(min(s, 3))] * 2)
    logits = F.matmul(x, output.T)
    best, second = logits.topk(2).values.unbind(-1)
    found = decode_embed_network(output, tokens, s).at(s, x)
    tally.equal("x", found[best > second], tokens[logits.argmax(-1)][best > second])
    return tally.check(f"decoding and embedding, in F_{s}", "every pair of numbers with a unique best", "x")


def _gate(s: int, pairs: Tensor) -> Check:
    tally = Tally()
    for M in (0.0, 1.0):
        mask = torch.full((len(pairs), 1), M, dtype=torch.float64)
        inputs, wanted = torch.cat([pairs, mask, 1 - mask], dim=1), pairs[:, :1] if M else pairs[:, 1:]
        tally.equal(f"M={M:.0f}", control_gate(s).at(s, inputs), wanted)
    return tally.check(f"control gate, in F_{s}", "every pair of numbers and both M", "cases")


def _increment() -> Check:
    tally = Tally()
    for bits in range(1, 11):
        x = torch.arange(2**bits - 1)
        tally.equal(f"{bits} bits", increment(bits).at(bits, signed_binary(x, bits)), signed_binary(x + 1, bits))
    return tally.check("increment, in F_bits", "every number of 1 to 10 bits", "numbers")


def _comparison() -> Check:
    tally = Tally()
    for bits in range(1, 8):
        x, y = torch.cartesian_prod(torch.arange(2**bits), torch.arange(2**bits)).unbind(-1)
        both = torch.cat([signed_binary(x, bits), signed_binary(y, bits)], dim=-1)
        tally.equal(f"{bits} bits", comparison(bits).at(bits, both), (x > y)[:, None].double())
    return tally.check("comparison, in F_bits", "every pair of numbers of 1 to 7 bits", "pairs")
