"""p-hop induction: follow the last letter back through the sequence, p times.

One hop from position i looks for the last place before i that holds the same letter as i, and lands on the letter
after it. With positions counted from 1,

    find_1(v, i) = max({0} ∪ {j ≤ i : v_{j-1} = v_i}),    find_p = find_1 applied p times,

and the label at position i is the letter at find_p(v, i), or ⊥ if that is 0. Where a letter is preceded by itself,
j = i is allowed and the chain stays there forever. That can only happen at the first hop: were v_j, at a stop j < i,
the same letter as v_{j-1} = v_i, then j+1 would have been the stop.

>>> print(PHop(p=2, n=8, alphabet=3).render([0, 2, 1, 0, 2, 1, 1, 0]))
2-hop over 8 letters of abc: answer b
<BLANKLINE>
position  1  2  3  4  5  6  7  8
letter    a  c─▸b  a─▸c  b  b  a
chain           └─────┴────────┘
hop             2     1
         answer ▲
<BLANKLINE>
hop  1: from a at 8 to c at 5
hop  2: from c at 5 to b at 3
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.random_bits import Stream
from loopt.tasks.base import IGNORE, Batch, Supervision, Task, check_choice, check_integer, different_integers

Sampler = Literal["planted", "uniform"]

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class PHop(Task):
    name: ClassVar[str] = "phop"

    p: tuple[int, ...] = (16,)
    """How many hops. With several counts, each example draws one, and a token that names it precedes the letters."""
    n: int = 256
    """How many letters an example has."""
    alphabet: int = 4
    """How many different letters there are."""
    sampler: Sampler = "planted"
    """planted: exactly p hops, each to a new position, hidden among fillers. uniform: letters drawn independently."""
    supervision: Supervision = "last"
    """last: the last letter alone has a label. every: each letter has one, where its own chain leads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "p", different_integers(self.name, "p", self.p, 1))
        check_integer(self.name, "alphabet", self.alphabet, 2, len(LETTERS))
        check_integer(self.name, "n", self.n, 2)
        check_choice(self.name, "sampler", self.sampler, get_args(Sampler))
        check_choice(self.name, "supervision", self.supervision, get_args(Supervision))
        if not self.p:
            raise InputError(f"task {self.name}: p=(); allowed are one or more integers, such as 16 or 1 2 3 4")
        longest = max(self.p)
        # p bigrams and the last letter; of uniform letters, every chain is stuck or has run out after n hops anyway.
        needed = 2 * longest + 1 if self.sampler == "planted" else longest
        if self.n < needed:
            raise InputError(
                f"task {self.name}: p={longest} with n={self.n} needs n of at least {needed} for the {self.sampler} "
                "sampler"
            )

    @property
    def mixed(self) -> bool:
        return len(self.p) > 1

    @property
    def vocabulary(self) -> tuple[str, ...]:
        hop_counts = tuple(f"p={p}" for p in self.p) if self.mixed else ()
        return (*LETTERS[: self.alphabet], "⊥", *hop_counts)

    @property
    def length(self) -> int:
        return self.n + self.mixed

    def draw(self, indices: Tensor, stream: Stream) -> Batch:
        which_p = stream.integers(indices, 1, len(self.p), "which p")  # [batch, 1]
        hops = torch.full_like(which_p, self.p[0])  # [batch, 1]
        for which, p in enumerate(self.p):
            hops = torch.where(which_p == which, p, hops)

        if self.sampler == "planted":
            tokens = self._planted(indices, hops, stream)  # [batch, n]
        else:
            tokens = stream.integers(indices, self.n, self.alphabet, "letters")  # [batch, n]
        labels = self._labels(tokens, hops)  # [batch, n]

        if self.mixed:
            tokens = torch.cat([self.alphabet + 1 + which_p, tokens], dim=1)  # [batch, 1 + n]
            labels = torch.cat([torch.full_like(which_p, IGNORE), labels], dim=1)  # [batch, 1 + n]
        answers = torch.full_like(labels, IGNORE)
        answers[:, -1] = labels[:, -1]
        return Batch(tokens, labels if self.supervision == "every" else answers, answers)

    def _planted(self, indices: Tensor, hops: Tensor, stream: Stream) -> Tensor:
        """Draws [batch, n] letters through which a chain c_0, c_1, … c_p makes p hops back from the last position.

        Hop t is a bigram c_{t-1} c_t somewhere left of hop t-1, and what lies between hop t+1 and hop t is not c_t.
        Seen from any position, s counts the hops that start there or further right. That alone says what to write:
        the first letter of a bigram is c_{s-1}, the second is c_{s+1}, and a filler is anything but c_s.
        """
        chain = self._chain(indices, stream)  # [batch, 1 + max p]
        first = self._bigram_starts(indices, hops, stream)  # [batch, n], 1 where a bigram starts
        second = first.roll(1, dims=1)  # nothing starts at the last position, so nothing wraps around
        s = first.flip(1).cumsum(1).flip(1)  # [batch, n]

        planted = chain.gather(1, s + second - first)  # [batch, n]; at a filler, the letter it must avoid
        avoids = s < hops  # left of the last hop no letter is looked for any more
        filler = stream.integers(indices, self.n, self.alphabet - avoids.long(), "fillers")  # [batch, n]
        filler = filler + (avoids & (filler >= planted))

        is_filler = (first + second) == 0
        is_filler[:, -1] = False  # the last position holds c_0
        return torch.where(is_filler, filler, planted)

    def _chain(self, indices: Tensor, stream: Stream) -> Tensor:
        """Draws [batch, 1 + max p] letters, no two neighbors equal."""
        start = stream.integers(indices, 1, self.alphabet, "chain start")  # [batch, 1]
        moves = 1 + stream.integers(indices, max(self.p), self.alphabet - 1, "chain moves")  # [batch, max p]
        return torch.cat([start, moves], dim=1).cumsum(1) % self.alphabet

    def _bigram_starts(self, indices: Tensor, hops: Tensor, stream: Stream) -> Tensor:
        """Draws where p bigrams start, [batch, n] with p ones; they share no position, and none has the last one. All
        ways to place them are equally likely: they are p of the n-1-p pieces, bigrams and fillers, before the last
        position."""
        most_pieces = self.n - 1 - min(self.p)
        piece = torch.arange(most_pieces, device=indices.device)  # [pieces]
        keys = stream.sort_keys(indices, most_pieces, "places")  # [batch, pieces]
        keys = torch.where(piece < self.n - 1 - hops, keys, torch.iinfo(torch.int64).max)
        smallest = keys.topk(max(self.p), largest=False).values  # [batch, max p], ascending
        is_bigram = (keys <= smallest.gather(1, hops - 1)).long()  # [batch, pieces]

        position = piece + is_bigram.cumsum(1) - is_bigram  # each bigram to the left takes one position more
        wide_enough = most_pieces + max(self.p) + 1
        starts = torch.zeros(len(indices), wide_enough, dtype=torch.int64, device=indices.device)
        return starts.scatter(1, position, is_bigram)[:, : self.n]  # [batch, n]

    def _labels(self, letters: Tensor, hops: Tensor) -> Tensor:
        """Returns the label at every position: [batch, n] letters and [batch, 1] hops -> [batch, n]."""
        bottom = torch.full_like(hops, self.alphabet)
        letters_from_1 = torch.cat([bottom, letters], dim=1)  # [batch, 1 + n]: position 0 holds ⊥
        jump = _one_hop(letters, self.alphabet)  # [batch, 1 + n]
        stop = torch.arange(self.n + 1, device=letters.device).expand_as(jump)  # [batch, 1 + n]
        for bit in range(max(self.p).bit_length()):  # jump makes 2**bit hops at once
            stop = torch.where((hops >> bit) % 2 == 1, jump.gather(1, stop), stop)
            jump = jump.gather(1, jump)
        return letters_from_1.gather(1, stop)[:, 1:]

    def solve(self, tokens: Sequence[int]) -> list[int]:
        p, letters = self._read(tokens)
        labels = [IGNORE] if self.mixed else []
        for start in range(1, len(letters) + 1):
            i = _follow(letters, start, p)[-1]
            labels.append(letters[i - 1] if i else self.alphabet)
        return labels

    def render(self, tokens: Sequence[int]) -> str:
        """Returns the sequence, wrapped where it is long, with the chain from its last letter drawn under it."""
        p, ids = self._read(tokens)
        letters = [LETTERS[letter] for letter in ids]
        stops = _follow(ids, len(ids), p)
        answer = letters[stops[-1] - 1] if stops[-1] else "⊥"

        lines = [f"{p}-hop over {len(letters)} letters of {LETTERS[: self.alphabet]}: answer {answer}", ""]
        lines += _drawing(letters, stops)
        lines += _hop_list(letters, stops)
        return "\n".join(lines)

    def document(self, tokens: Sequence[int]) -> str:
        """Returns the letters, the number of hops and the answer: ``a c b a c b b a, 2 hops: b``."""
        p, ids = self._read(tokens)
        stop = _follow(ids, len(ids), p)[-1]
        answer = LETTERS[ids[stop - 1]] if stop else "⊥"
        return f"{' '.join(LETTERS[letter] for letter in ids)}, {p} {'hop' if p == 1 else 'hops'}: {answer}"

    def _read(self, tokens: Sequence[int]) -> tuple[int, list[int]]:
        """Returns p and the letters of one example."""
        ids = [int(token) for token in tokens]
        p = self.p[0]
        if self.mixed:
            first_hop_count = self.alphabet + 1
            if not ids or not 0 <= ids[0] - first_hop_count < len(self.p):
                allowed = f"{first_hop_count} to {first_hop_count + len(self.p) - 1}"
                raise InputError(
                    f"task phop: tokens start with {ids[:1]}; allowed, for the p of the rest, are {allowed}"
                )
            p = self.p[ids.pop(0) - first_hop_count]
        if not ids:
            raise InputError("task phop: tokens have no letters; at least one is needed")
        for letter in ids:
            check_integer(self.name, "letter", letter, 0, self.alphabet - 1)
        return p, ids


def _one_hop(letters: Tensor, alphabet: int) -> Tensor:
    """Returns where one hop from position i leads, for i from 0 (which stays) to n: [batch, n] -> [batch, 1 + n]."""
    batch, n = letters.shape
    each_letter = torch.arange(alphabet, device=letters.device)[:, None]  # [alphabet, 1]
    position_after = torch.arange(2, n + 2, device=letters.device)  # [n]
    seen = torch.where(letters[:, None] == each_letter, position_after, 0)  # [batch, alphabet, n]
    last_seen = seen.cummax(dim=2).values  # [batch, alphabet, n]
    hop = last_seen[:, :, :-1].gather(1, letters[:, None, 1:]).squeeze(1)  # [batch, n - 1], for i from 2
    return torch.cat([torch.zeros(batch, 2, dtype=hop.dtype, device=hop.device), hop], dim=1)


def _follow(letters: Sequence[int], start: int, p: int) -> list[int]:
    """Returns the 1 + p stops of the chain from position ``start``, by the definition; 0 once it finds nothing."""
    stops = [start]
    for _ in range(p):
        i = stops[-1]
        stops.append(next((j for j in range(i, 1, -1) if letters[j - 2] == letters[i - 1]), 0))
    return stops


def _drawing(letters: Sequence[str], stops: Sequence[int]) -> list[str]:
    """Returns the sequence in even rows of at most 104 columns, and under it the chain as a line that runs left."""
    first_hop_to = {stop: hop for hop, stop in reversed(list(enumerate(stops))) if hop}
    cell = 1 + max(2, len(str(len(letters))))  # columns for a position; its letter stands in the last of them
    rows = math.ceil(len(letters) / (96 // cell))
    per_row = math.ceil(len(letters) / rows)

    lines = []
    for first in range(1, len(letters) + 1, per_row):
        positions = range(first, min(first + per_row, len(letters) + 1))
        hits = [("─" * (cell - 2) + "▸" if i in first_hop_to else "").rjust(cell - 1) for i in positions]
        lines.append("position" + "".join(str(i).rjust(cell) for i in positions))
        lines.append("letter  " + "".join(hit + letters[i - 1] for hit, i in zip(hits, positions, strict=True)))
        if positions[-1] >= stops[-1]:
            lines.append("chain   " + "".join(_chain_under(i, stops, cell) for i in positions))
            lines.append("hop     " + "".join(str(first_hop_to.get(i, "")).rjust(cell) for i in positions))
        if stops[-1] in positions:
            lines.append("answer ▲".rjust(8 + cell * (1 + positions.index(stops[-1]))))
        lines.append("")
    return [line.rstrip() for line in lines]


def _chain_under(i: int, stops: Sequence[int], cell: int) -> str:
    """Returns the chain's line where it passes under position i."""
    start, end = stops[0], stops[-1]
    if start == end or i < end:
        return " " * cell
    if i == end:
        return "└".rjust(cell)
    corner = "┘" if i == start else "┴" if i in stops else "─"
    return corner.rjust(cell, "─")


def _hop_list(letters: Sequence[str], stops: Sequence[int]) -> list[str]:
    lines = []
    for hop, (i, j) in enumerate(itertools.pairwise(stops), start=1):
        letter = letters[i - 1]
        if j == 0:
            lines.append(f"hop {hop:2}: from {letter} at {i}, which has not occurred before, to ⊥")
            break
        if j == i:
            lines.append(
                f"hop {hop:2}: from {letter} at {i}, with another {letter} just before it, stays there for ever"
            )
            break
        lines.append(f"hop {hop:2}: from {letter} at {i} to {letters[j - 1]} at {j}")
    return lines
