"""Corollary 5.3 for every sequence: each head and feed-forward of the two constructions, over all cases it can meet.

A head that looks up a position sees pointers 1 … n and positions 1 … n. The head that looks for a letter sees its own
letter, the letter before another position, and what stands for order: the position itself, or two counts. A
feed-forward sees pointers, digits and letters. None of these lists grows faster than n², and each is checked whole.
Queries, keys and the output layer have to be 0 on every coordinate but those, and what positions hold to be as built.

>>> from loopt.theory.phop import build_phop
>>> from loopt.theory.phop_counting import build_counting
>>> certify(build_phop(p=5, n=12), p=5, n=12).wrong, certify_counting(build_counting(5, 12, s=11), 5, 12, s=11).wrong
(0, 0)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loopt.theory import phop, phop_counting
from loopt.theory.certificates import MARGIN, Variables, apart, copies, feed_forward_is, one_hot, reads_only
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, Space
from loopt.theory.phop import ALPHABET, digits_of_letters, doublings, schedule_of_digits
from loopt.theory.precision import FixedPoint, arithmetic, weight_outside
from loopt.theory.proof import Tally


def certify(formal: FormalTransformer, p: int, n: int, alphabet: int = ALPHABET) -> Tally:
    """Checks pointer doubling over the reals for all sequences of n letters."""
    one = _Certificate(formal, p, n, alphabet, phop.coordinates(alphabet), 2, None)
    if one.tally.wrong:
        return one.tally
    place = one.space.unit("position") - one.space.unit("first")
    one.previous_letter(one.codes)
    one.recent_match(formal.layers[1].heads, place)
    one.pointers_from(1)
    one.rest()
    return one.tally


def certify_counting(formal: FormalTransformer, p: int, n: int, s: int, alphabet: int = ALPHABET) -> Tally:
    """Checks p-hop by counting in plain F_s for all sequences of n letters."""
    one = _Certificate(formal, p, n, alphabet, phop_counting.coordinates(alphabet), 3, s)
    if one.tally.wrong:
        return one.tally
    one.previous_letter(2 * one.codes - 1)
    one.counts(formal.layers[1])
    one.counted_match(formal.layers[2].heads)
    one.pointers_from(2)
    one.rest()
    return one.tally


class _Certificate:
    """The parts of both certificates. Letters are rows of ``tokens``; a pointer has one number, or two."""

    def __init__(
        self, formal: FormalTransformer, p: int, n: int, alphabet: int, space: Space, before: int, s: int | None
    ) -> None:
        self.tally, self.F = Tally(), arithmetic(s)
        self.formal, self.p, self.n, self.alphabet, self.space = formal, p, n, alphabet, space
        depth = before + doublings(p)
        self.tally.holds(f"{formal.plan.depth} layers, should be {depth}", formal.plan.depth == depth)
        self.tally.holds(f"d={formal.d}, should be {space.size}", formal.d == space.size)
        self.tally.holds("distinct layers", len(formal.layers) == before + (p > 1))
        if s is not None:
            outside = weight_outside(formal, s)
            self.tally.holds(outside, not outside)
        digits = digits_of_letters(alphabet)
        self.codes = ((torch.arange(alphabet)[:, None] >> torch.arange(digits)) & 1).double()  # [alphabet, digits]
        self.here = torch.arange(1, n + 1)
        # Over the reals each lookup adds what other positions, or #, get of it, e^-40 of n at most, to pointers.
        self.off = depth * n * n * torch.tensor(1 - MARGIN).exp().item() if s is None else 0.0

    def previous_letter(self, codes: Tensor) -> None:
        """Layer 1: position i fetches the letter of i - 1; the first one, which fetches its own, takes it away."""
        formal, space, tally = self.formal, self.space, self.tally
        (head,), layer = formal.layers[0].heads, formal.layers[0]
        tally.equal("letters", formal.tokens[: self.alphabet], codes @ space.read("letter"))
        for part in ("query", "key"):
            reads = getattr(head, part)[:, space["letter"]]  # tokens hold nothing else
            tally.equal(f"the head of layer 1: its {part} reads the letter", reads, torch.zeros_like(reads))
        queries, keys = (self.F.matmul(formal.positions, weight.T) for weight in (head.query, head.key))
        one_hot(tally, "layer 1, attention", self.F, queries, keys, (self.here - 2).clamp(min=0), causal=True)
        copies(tally, "layer 1", head, space.read("letter"), space.read("previous"))
        letters = codes @ space.read("letter"), codes @ space.read("previous")
        places = formal.positions[:2]  # the first position and another
        reads_only(tally, "layer 1: a hidden unit", layer.W1, space, "one", "first", "letter", "previous")
        nothing = torch.zeros(1, space.size, dtype=torch.float64)
        tables = {"place": places, "letter": letters[0], "fetched": letters[1]}
        after = Variables(tables | {"fetched": torch.cat([letters[1], nothing])}, nothing[0])
        keep = torch.arange(self.alphabet)
        fetched = torch.stack([torch.full_like(keep, self.alphabet), keep])  # [place, fetched]
        becomes = {"fetched": (("place", "fetched"), fetched), "place": (("place",), torch.arange(2))}
        becomes["letter"] = ("letter",), keep
        feed_forward_is(tally, "layer 1, feed-forward", self.F, layer, Variables(tables, nothing[0]), after, becomes)

    def reads(self, what: str, head: Head, query: Sequence[str], key: Sequence[str]) -> None:
        reads_only(self.tally, f"{what}: its query", head.query, self.space, *query)
        reads_only(self.tally, f"{what}: its key", head.key, self.space, *key)

    def recent_match(self, heads: Sequence[Head], place: Tensor) -> None:
        """Layer 2 over the reals: a later match scores more than an earlier one, that more than the first position,
        that more than any wrong letter."""
        (head,), formal, space = heads, self.formal, self.space
        letter, previous = (self.codes @ space.read(name) for name in ("letter", "previous"))
        self.reads("layer 2", head, ("letter", "one"), ("previous", "one", "position", "first"))
        queries = (letter + formal.positions[0]) @ head.query.T
        first = queries @ (head.key @ formal.positions[0])  # [alphabet]
        keys = (previous[:, None] + formal.positions[1:]) @ head.key.T  # [alphabet, n - 1, k]
        scores = torch.einsum("ak,bjk->abj", queries, keys)
        own = scores.diagonal().T  # [alphabet, n - 1]
        wrong = scores.masked_fill(torch.eye(self.alphabet, dtype=torch.bool)[:, :, None], -torch.inf)
        every = torch.cat([first[:, None], own], dim=1)
        self.tally.holds("layer 2: a later match above an earlier one, by letter", apart(every[:, :-1], every[:, 1:]))
        self.tally.holds("layer 2: no match above a wrong letter, by letter", apart(wrong.amax((1, 2)), first))
        source = torch.cat([place[None], space.read("letter")])
        copies(self.tally, "layer 2", head, source, space.read("found_far", "found_answer"))

    def counts(self, layer: FormalLayer) -> None:
        """Layer 2 in F_s: matches and the first position have equal weight, which is all that the two heads give."""
        F, space = self.F, self.space
        assert isinstance(F, FixedPoint)
        self.tally.holds(f"n={self.n} is over B_s", self.n <= F.largest)
        self.tally.equal("layer 2: hidden units", layer.W2, torch.zeros_like(layer.W2))
        self.tally.equal("layer 2: b2", layer.b2, torch.zeros_like(layer.b2))
        keys = self._symbols("previous")
        outputs = ("matches_before", "matches_here")
        for head, by, output in zip(layer.heads, ("previous", "letter"), outputs, strict=True):
            asks = self._symbols(by) if by == "previous" else self._symbols(by)[:-1]
            powers = F.exp(F.matmul(F.matmul(asks, head.query.T), F.matmul(keys, head.key.T).T))
            wanted = torch.eye(len(keys), dtype=torch.float64)[: len(asks)]
            wanted[:, -1] = 1.0  # the first position
            letters = slice(self.alphabet)
            self.tally.equal(f"layer 2, {output}: exp of scores, by letter", powers[letters], wanted[letters])
            if by == "previous":
                self.tally.holds("layer 2: the first position sees itself", powers[-1, -1] == 1)
            self.reads(f"layer 2, {output}", head, (by, "one"), ("previous", "one", "first"))
            copies(self.tally, f"layer 2, {output}", head, space.read("first"), space.read(output))

    def _symbols(self, name: str) -> Tensor:
        """Returns the state of a position that is not the first with each letter there, and that of the first, whose
        letter before it is none: [alphabet + 1, d]. Of other coordinates they have what positions hold."""
        codes = (2 * self.codes - 1) @ self.space.read(name)
        return torch.cat([codes + self.formal.positions[-1], self.formal.positions[:1]])

    def counted_match(self, heads: Sequence[Head]) -> None:
        """Layer 3 in F_s: of all pairs of counts and letters, exp is 1 at the most recent match, or at the first
        position where there is none, and else 0."""
        (head,), F, space, n = heads, self.F, self.space, self.n
        assert isinstance(F, FixedPoint)
        shares = F.divide(torch.ones(n), torch.arange(1, n + 1))[:, None]  # 1/(1+c) of c = 0 … n - 1
        letters, count = self._symbols("previous"), torch.arange(n)
        query, key = ("letter", "one", "matches_here"), ("previous", "one", "first", "matches_before")
        self.reads("layer 3", head, query, key)
        keys = F.matmul((letters[:-1, None] + shares * space.read("matches_before")).flatten(0, 1), head.key.T)
        first = F.matmul(letters[-1:] + space.unit("matches_before"), head.key.T)
        for a, letter in enumerate(self._symbols("letter")[:-1]):
            queries = F.matmul(letter + shares * space.read("matches_here"), head.query.T)  # [n, k]
            powers = F.exp(F.matmul(queries, keys.T)).view(n, self.alphabet, n)  # count here, letter, count there
            mine = powers[:, a].tril()  # a match has no more matches before it than there are up to here
            self.tally.equal(f"layer 3, letter {a}: matches by count", mine, torch.eye(n, dtype=torch.float64))
            others = powers[:, torch.arange(self.alphabet) != a].flatten(1)
            self.tally.equal(f"layer 3, letter {a}: other letters", others, torch.zeros_like(others))
            nowhere = F.exp(F.matmul(queries, first.T))[:, 0]
            self.tally.equal(f"layer 3, letter {a}: the first position", nowhere, (count == 0).double())
        constant = 0.5 * torch.outer(torch.ones(len(self.codes[0]), dtype=torch.float64), space.unit("one"))
        source = torch.cat([space.read("place"), 0.5 * space.read("letter") + constant])
        copies(self.tally, "layer 3", head, source, space.read("found_far", "found_answer"))

    def pointers_from(self, start: int) -> None:
        """The feed-forwards of layers ``start`` and on, and the head that follows a pointer."""
        formal, space, tally = self.formal, self.space, self.tally
        pointers = self._pointers()
        f_0 = pointers[-self.n :].clone()
        if pointers.shape[1] == 1:
            f_0[0] = 0.0  # the first position is nowhere
        wanted = f_0 @ space.read("found_near") + schedule_of_digits(self.p, space)
        here = self.here.double()
        wanted[:, : space["letter"].start] = torch.stack([here**0, here, here**2, (here == 1).double()], dim=1)
        tally.equal("what positions hold", formal.positions, wanted)
        if self.p > 1:
            (head,) = formal.layers[start + 1].heads
            queries = self.F.matmul(pointers @ space.read("follow") + self._constant(), head.query.T)
            keys = self.F.matmul(formal.positions, head.key.T)
            target = (pointers[:, 0].long() - 1).clamp(min=0)
            one_hot(tally, "following a pointer, attention", self.F, queries, keys, target)
            place = ("position", "square") if pointers.shape[1] == 1 else ("place",)
            self.reads("following a pointer", head, ("follow", "one"), ("one", *place, "first"))
            scores = self.off * (keys.abs() @ head.query[:, space["follow"]].abs()).sum(1)
            tally.holds(f"pointers are off by {self.off:.1e}, scores by too much, by position", scores < 0.005)
            held, found = ("far", "near", "answer"), ("found_far", "found_near", "found_answer")
            copies(tally, "following a pointer", head, space.read(*held), space.read(*found))
        for layer in formal.layers[start:]:
            self.arrive(layer)

    def _pointers(self) -> Tensor:
        """Returns all pointers, [n + 1, 1] with 0 for nowhere or [n, 2]."""
        width = self.space["far"].stop - self.space["far"].start
        numbers = torch.arange(width - 1, self.n + 1, dtype=torch.float64)[:, None]
        return numbers if width == 1 else torch.cat([numbers, numbers**2], dim=1)

    def _constant(self) -> Tensor:
        return self.space.unit("one")

    def arrive(self, layer: FormalLayer) -> None:
        space, pointers = self.space, self._pointers()
        counted = layer.W1[:, space["previous"].stop : space["far"].start]  # over the reals there is nothing between
        self.tally.equal("replacing pointers: hidden units that read counts", counted, torch.zeros_like(counted))
        most = 2 ** max(doublings(self.p) - 1, 0)
        numbers = torch.arange(most, dtype=torch.float64)[:, None]
        tables = {name: pointers @ space.read(name) for name in ("far", "near", "found_far", "found_near", "follow")}
        nothing = torch.zeros(1, space.size, dtype=torch.float64)  # what these hold before a first pointer is there
        tables |= {name: torch.cat([tables[name], nothing]) for name in ("far", "near", "follow")}
        tables |= {name: self.codes @ space.read(name) for name in ("answer", "found_answer")}
        tables |= {"turn": torch.arange(2.0, dtype=torch.float64)[:, None] @ space.read("turn")}
        tables |= {"left": numbers @ space.read("digits_left")}
        kept = self.formal.positions.clone()  # what stays: number, square and whether it is the first
        kept[:, space["letter"].start :] = 0.0
        beside = {"place": kept - self._constant(), "letter": self.formal.tokens[: self.alphabet]}
        beside["previous"] = self.formal.tokens[: self.alphabet] @ space.read("letter").T @ space.read("previous")
        everywhere = Variables(tables | beside, self._constant())
        half = most // 2 or 1
        digit = (torch.arange(most) >= half).long()
        found = torch.arange(len(pointers))
        far, near = found[:, None].expand(-1, len(found)), found.expand(len(found), -1)
        becomes = {
            "far": (("found_far",), found),
            "near": (("found_near",), found),
            "answer": (("found_answer",), torch.arange(self.alphabet)),
            "follow": (("turn", "found_far", "found_near"), torch.stack([near, far])),
            "turn": (("left",), digit),
            "left": (("left",), (2 * torch.arange(most) - 2 * half * digit).clamp(max=most - 1)),
        }
        becomes |= {name: ((name,), torch.arange(len(table))) for name, table in beside.items()}
        empty = {name: tables[name][:1] for name in ("far", "near", "answer", "follow", "turn", "left")}
        after = Variables({name: tables[name] for name in empty} | beside, self._constant())
        most_cases = max(1_000_000, 2 * (self.n + 1) ** 2)  # two pointers and a turn decide which is followed
        feed_forward_is(self.tally, "replacing pointers", self.F, layer, everywhere, after, becomes, most_cases)

    def rest(self) -> None:
        """The output layer, for each letter and pointer, and the number of hops."""
        space, pointers, F = self.space, self._pointers(), self.F
        hops, (turn, left) = 1, self.formal.positions[0] @ space.read("turn", "digits_left").T
        for half in (2 ** max(k, 0) for k in [doublings(self.p) - 2] * doublings(self.p)):
            hops = 2 * hops - (0 if turn else 1)
            turn, left = float(left >= half), 2 * left - 2 * half * (left >= half)
        self.tally.holds(f"{hops} hops, should be {self.p}", hops == self.p)
        states = self.codes[:, None] @ space.read("answer") + (pointers @ space.read("far")) + self._constant()
        logits = F.matmul(states.flatten(0, 1), self.formal.output.T).view(self.alphabet, len(pointers), -1)
        wanted = torch.arange(self.alphabet)[:, None].repeat(1, len(pointers))
        wanted[:, 0] = self.alphabet  # ⊥, whatever letter was read there
        self.tally.equal("the answer by letter and pointer", logits.argmax(-1), wanted)
        best, output = logits.topk(2).values, self.formal.output
        room = 2 * self.off * output.abs().sum(1).max()
        self.tally.holds("the answer is above all others", best[..., 0] - best[..., 1] > room)
        reads_only(self.tally, "the output layer", output, space, "answer", "far", "one")
