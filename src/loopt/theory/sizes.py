"""The sizes of the constructions as formulas: loops, heads, widths and bits over n, p, |G|, L, R, |V| and m.

>>> composition(order=120, n=64)
Sizes(loops=6, heads=2, d=42, d_ff=14442, bits=2)
>>> [phop_by_counting(p=16, n=n).bits for n in (16, 64, 256)]
[12, 16, 20]
"""

from __future__ import annotations

from dataclasses import dataclass

from loopt.theory import phop_counting
from loopt.theory.chain_of_thought import bits_for
from loopt.theory.phop import digits_of_letters, doublings


@dataclass(frozen=True)
class Sizes:
    loops: int
    heads: int
    d: int
    d_ff: int
    bits: int | None
    """The s of F_s in which it is right; None over the reals, or where it is that of the transformer simulated."""


def composition(order: int, n: int) -> Sizes:
    """Returns those of Theorem 5.1 for a group of ``order`` elements."""
    m, p = max(1, (order - 1).bit_length()), n.bit_length()
    s = 2
    while 4**s < 2 * m + 2:
        s += 1
    return Sizes(max(1, (n - 1).bit_length()), 2, 3 * (m + p), order**2 + 6 * m, s)


def phop(p: int, alphabet: int = 4) -> Sizes:
    """Returns those of Corollary 5.3, not looped, over the reals; no width depends on n."""
    b = digits_of_letters(alphabet)
    return Sizes(doublings(p) + 2, 1, 11 + 4 * b, 11 + 2 * b, None)


def phop_by_counting(p: int, n: int, alphabet: int = 4) -> Sizes:
    """Returns those of Corollary 5.3, not looped, in plain F_s."""
    b = digits_of_letters(alphabet)
    return Sizes(doublings(p) + 3, 2, 18 + 4 * b, 18 + 2 * b, phop_counting.precision_of(p, n))


def simulation(d: int, heads: int, d_ff: int, L: int, R: int) -> Sizes:
    """Returns those of Theorem 5.2 for L layers, R of them distinct; hidden units are at most so many."""
    return Sizes(L, R * heads, d + R + 2, R * d_ff + R + L, None)


def chain_of_thought(d: int, heads: int, d_ff: int, V: int, n: int, m: int) -> Sizes:
    """Returns those of Theorem 5.4; a loop runs the layers of θ and two more."""
    s = bits_for(n, m)
    return Sizes(m, heads, 2 * d + 3 * V + 3 * s + 2, max(d_ff, V * V + V + 2 * d + 2, 4 * V + s), None)
