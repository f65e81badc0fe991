"""Corollary 5.3 in the paper's own arithmetic: p-hop by counting, in plain F_s with O(log n) bits.

In F_s softmax rounds exp and subtracts no maximum, so a head cannot prefer the most recent of many positions by a score
that grows with the position (``levels_told_apart``). Counts can be told apart. Let c_j be how many positions up to j
have the same letter before them as j has, and c'_i how many up to i have the letter of i before them. The positions j ≤
i with the letter of i before them have c_j = 1, 2, …, c'_i in their order: the most recent is the one with c_j = c'_i.

    layer 1       every position fetches the letter before it;
    layer 2       two heads give equal weight to all matches and to position 1, which so gets 1/(1+c_j) and 1/(1+c'_i);
    layer 3       a match scores B_s·(1/(1+c'_i) - 1/(1+c_j)), 0 if it is the most recent and else so low that exp
                  rounds to 0; a wrong letter scores -B_s. Position 1, with c_1 = 0, is found where there is no match;
    layer 4 …     pointers are followed, as in ``phop``.

A pointer is a pair (t, t²), and position j has the score -β(t-j)², which is 0 at the target. Nowhere is position 1,
where no hop can lead.

>>> s = precision_of(p=3, n=8)
>>> built = build_counting(p=3, n=8, s=s)
>>> s, str(built.plan), built.d, built.n_heads, built.d_attn, built.d_ff
(9, '1x(1,1,1,2)', 26, 2, 6, 22)
>>> forward(built, torch.tensor([[0, 2, 1, 0, 2, 1, 1, 0]]), s).argmax(-1).tolist()  # 4 is ⊥
[[4, 4, 4, 4, 4, 4, 1, 4]]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.plan import LoopPlan
from loopt.tasks.phop import PHop
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, Space, zeros
from loopt.theory.lemmas import interleaved
from loopt.theory.phop import (
    ALPHABET,
    digits_of_letters,
    doublings,
    first_half,
    replace_pointers,
    schedule_of_digits,
)
from loopt.theory.precision import MOST_BITS, FixedPoint, Softmax, forward
from loopt.theory.simulation import Bounds, simulate


@dataclass(frozen=True)
class Constants:
    """Factors on the numbers of the construction; with another value it is wrong."""

    sharpness: float = 1.0
    """The factor on β, which makes e^-β round to 0."""
    count: float = 1.0
    """The factor on B_s, by which counts are compared."""
    letter: float = 1.0
    """The factor on B_s, by which letters are compared."""


def coordinates(alphabet: int) -> Space:
    """Returns the residual coordinates. A pointer is (t, t²), letter and previous are ±1, answers 0 or 1."""
    digits = digits_of_letters(alphabet)
    return Space(
        one=1,
        place=2,  # i and i²
        first=1,  # 1 at the first position
        letter=digits,
        previous=digits,  # the letter before, zeros at the first position
        matches_before=1,  # 1/(1+c_j)
        matches_here=1,  # 1/(1+c'_i)
        far=2,  # f_a
        near=2,  # f_{a-1}
        answer=digits,  # the letter at f_a
        found_far=2,
        found_near=2,
        found_answer=digits,
        follow=2,
        turn=1,
        digits_left=1,
    )


def one_hot_sharpness(s: int) -> int:
    """Returns the smallest integer β for which e^-β rounds to 0 in F_s."""
    return math.ceil((s + 1) * math.log(2))


def precision_of(p: int, n: int) -> int:
    """Returns the smallest s in which the construction is right for every sequence: βn² and p fit, and two counts up to
    n - 1 differ so much that exp of B_s times the difference of their 1/(1+c) rounds to 0. That is about 2·log2 n +
    log2 log n + 2.

    >>> [precision_of(16, n) for n in (8, 16, 32, 64, 128, 256)]
    [9, 12, 14, 16, 18, 20]
    """
    for s in range(2, MOST_BITS + 1):
        F = FixedPoint(s)
        if max(one_hot_sharpness(s) * n * n, p) <= F.largest and told_apart(F, n):
            return s
    needed = MOST_BITS + 1
    while 2**needed < max(n * (n + 1) * (needed + 1) * math.log(2), p):
        needed += 1
    most = f"up to s={MOST_BITS}, which float64 holds and which is enough for n = 1200 and p = 2^24"
    raise InputError(f"p={p}, n={n}: in F_s this takes s={needed}; allowed is {most}")


def told_apart(F: FixedPoint, n: int) -> bool:
    """Tells whether exp of B_s·(1/(1+c) - 1/c), rounded, is 0 for every count c up to n - 1."""
    shares = F.divide(torch.ones(n), torch.arange(1, n + 1))
    scores = F.multiply(shares, torch.tensor(F.largest))
    return not bool(F.exp(scores[1:] - scores[:-1]).any())


def build_counting(
    p: int, n: int, s: int, alphabet: int = ALPHABET, constants: Constants | None = None
) -> FormalTransformer:
    """Builds p-hop in F_s over up to n letters: every position answers with a letter or with ⊥, token ``alphabet``."""
    task = PHop(p=(p,), n=n, alphabet=alphabet, sampler="uniform")  # refuses a bad p, n or alphabet
    digits, space = digits_of_letters(alphabet), coordinates(alphabet)
    one, first, place = space.unit("one"), space.unit("first"), space.read("place")
    numbers = torch.arange(1, n + 1, dtype=torch.float64)[:, None]  # [n, 1]
    positions = one + torch.cat([numbers, numbers**2], dim=1) @ place + (numbers == 1) * first
    positions = positions + schedule_of_digits(p, space)
    positions = positions + positions @ place.T @ space.read("found_near")  # layer 3 "finds" f_0
    binary = 2 * ((torch.arange(alphabet)[:, None] >> torch.arange(digits)) & 1).double() - 1  # [alphabet, digits]
    nowhere = 2 * digits * (2 * one - space.read("far")[0])  # above the digits of a letter where far is 1, else below
    return FormalTransformer(
        plan=LoopPlan.parse(f"1x(1,1,1,{doublings(p)})" if p > 1 else "1x(1,1,1)"),
        tokens=torch.cat([binary @ space.read("letter"), zeros(len(task.vocabulary) - alphabet, space.size)]),
        positions=positions,
        layers=_layers(p, n, s, space, constants or Constants()),
        output=torch.cat([binary @ (2 * space.read("answer") - one), nowhere[None]]),
    )


def _layers(p: int, n: int, s: int, space: Space, c: Constants) -> tuple[FormalLayer, ...]:
    """Builds the layers that fetch the letter before, count, find the most recent match, and follow pointers."""
    B, beta = FixedPoint(s).largest, one_hot_sharpness(s)
    one, first = space.unit("one"), space.unit("first")
    position, square = place = space.read("place")
    letter, previous = space.read("letter"), space.read("previous")

    def lookup(t: Tensor, t_squared: Tensor, value: Tensor, output: Tensor) -> Head:
        """Builds a head that fetches ``value`` from position t: β(tj - j² + tj - t²), which stays below B_s."""
        query = torch.stack([t, one, t, t_squared])
        return Head(query, c.sharpness * beta * torch.stack([position, -square, position, -one]), value, output)

    def matching(wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Returns queries and keys that leave a score as it is where the letter before is the ``wanted`` one, and at
        the first position, and else take it to -B_s."""
        key = interleaved(previous, first - one)
        return interleaved(wanted, one), c.letter * B * key

    before = position - one + first, square - 2 * position + one + first  # i - 1, but 1 at the first position
    previous_letter = FormalLayer(
        heads=(lookup(*before, letter, previous),),
        # The first position can only fetch its own letter, which the feed-forward takes away again.
        W1=torch.cat([previous + first - one, first - one - previous]),
        b1=zeros(2 * len(previous)),
        W2=torch.cat([-previous, previous]).T,
        b2=zeros(space.size),
    )
    count = FormalLayer(
        heads=tuple(
            Head(*matching(wanted), first[None], space.read(output))
            for wanted, output in ((previous, "matches_before"), (letter, "matches_here"))
        ),
        W1=zeros(1, space.size),
        b1=zeros(1),
        W2=zeros(space.size, 1),
        b2=zeros(space.size),
    )
    query, key = matching(letter)
    counts = c.count * B * torch.stack([-space.unit("matches_before"), one])
    induction = Head(  # counts come first: a wrong letter then has the last word
        query=torch.cat([torch.stack([one, space.unit("matches_here")]), query]),
        key=torch.cat([counts, key]),
        value=torch.cat([place, 0.5 * (letter + one)]),
        output=space.read("found_far", "found_answer"),
    )
    t, t_squared = space.read("follow")
    held, found = ("far", "near", "answer"), ("found_far", "found_near", "found_answer")
    follow_pointer = lookup(t, t_squared, space.read(*held), space.read(*found))
    arrive = replace_pointers(space, gate=float(n * n), half=first_half(p))
    layers = previous_letter, count, replace(arrive, heads=(induction,))
    return (*layers, replace(arrive, heads=(follow_pointer,))) if p > 1 else layers


def build_looped_counting(p: int, n: int, s: int, alphabet: int = ALPHABET) -> FormalTransformer:
    """Builds one layer, looped ⌈log2 p⌉ + 3 times on `#` and the letters in F_s; `#` is token ``alphabet`` + 1."""
    return simulate(build_counting(p, n, s, alphabet), Bounds.largest(s))


def answers_in_precision(formal: FormalTransformer, tokens: Tensor, s: int, start: int | None = None) -> Tensor:
    """Returns the answer in F_s at every letter, [B, n] -> [B, n]; the looped model needs `#`, its ``start``, first."""
    if start is not None:
        tokens = torch.cat([torch.full_like(tokens[:, :1], start), tokens], dim=1)
    found = torch.cat([forward(formal, few, s).argmax(-1) for few in tokens.split(4)])
    return found if start is None else found[:, 1:]


@cache
def levels_told_apart(s: int, softmax: Softmax) -> int:
    """Returns how many scores F_s has such that, of any two, softmax gives the higher one all the weight. Attention to
    the most recent match can be one-hot by such scores over that many distances.

    >>> [levels_told_apart(s, "plain") for s in (2, 4, 8)], [levels_told_apart(s, "shifted") for s in (2, 4, 8)]
    ([3, 3, 3], [4, 10, 83])
    """
    F = FixedPoint(s)
    highest = 4**s - 1  # B_s in steps of 2^-s

    def one_hot(low: int, high: int) -> bool:
        return F.softmax(torch.tensor([low, high]) * F.step, kind=softmax).tolist() == [0, 1]

    score, levels = -highest, 1
    while one_hot(score, highest):
        tied, apart = score, highest
        while apart - tied > 1:
            middle = (tied + apart) // 2
            tied, apart = (tied, middle) if one_hot(score, middle) else (middle, apart)
        score, levels = apart, levels + 1
    return levels
