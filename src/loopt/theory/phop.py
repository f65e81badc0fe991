"""Corollary 5.3: p-hop by pointer doubling, in ⌈log2 p⌉ + 2 layers of which 3 are distinct, and in one looped layer.

Write f for one hop, the paper's find_1, and f_a for a of them; 0 is nowhere, and f(0) = 0. Two layers find f. After
that, a position that follows its pointer to another, and takes over the pointer it finds there, doubles its reach:

    layer 1       every position learns the letter before it;
    layer 2       it looks for its own letter among those, takes the most recent place, and has found f_1;
    layer 3 …     f_2a = f_a ∘ f_a: the same layer, ⌈log2 p⌉ times.

With each pointer comes the letter that it points to, so nothing is left to look up at the end. Where p is no power of
two, a position keeps two pointers, f_a (``far``) and f_{a-1} (``near``), and follows the one or the other: f_a leads to
f_2a and f_{2a-1}, f_{a-1} to f_{2a-1} and f_{2a-2}. It starts with f_1 and f_0; following ``far`` for every 1 and
``near`` for every 0 among the ⌈log2 p⌉ binary digits of p - 1, highest first, it arrives at f_p. For p = 2^k all digits
are ones: plain doubling.

Attention finds position t with the keys (j, -j²) and the query β(2t, 1): the score is β(t² - (j-t)²), largest at j = t
by β or more. Nowhere, t = 0, lands on position 1, whose own pointer is 0, so ⊥ stays ⊥ without a rule of its own.

>>> task = PHop(p=(5,), n=12, alphabet=3, sampler="uniform", supervision="every")
>>> built = build_phop(p=5, n=12, alphabet=3)
>>> str(built.plan), built.d, built.n_heads, built.d_attn, built.d_ff
('1x(1,1,3)', 19, 1, 4, 15)
>>> batch = task.sample(range(100), seed=0, split="test")
>>> bool((built.model()(batch.tokens).argmax(-1) == batch.targets).all())
True
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.model import LoopedTransformer
from loopt.plan import LoopPlan
from loopt.tasks.phop import LETTERS, PHop
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, Space, zeros
from loopt.theory.precision import MOST_BITS, FixedPoint, Softmax, forward
from loopt.theory.proof import Check, Proof, Size, Trace
from loopt.theory.simulation import SOFTMAX_MARGIN, Bounds, claimed_sizes, simulate
from loopt.theory.thresholds import bisect

ALPHABET = 4
START = ALPHABET + 1
"""`#`, after the letters and ⊥."""


@dataclass(frozen=True)
class Constants:
    """What the construction hangs on. Sharpness, match, gate and nowhere have slack; ``smallest_constant`` finds it."""

    sharpness: float = 40.0
    """β: the best score is this much above the others, or more."""
    before: float = -1.0
    """Layer 1 looks this far from its own position."""
    match: float = 1.0
    """Layer 2: what half a digit of a letter is worth, in n; recency alone can bring n - 1."""
    recency: float = 1.0
    """Layer 2: what one position later is worth."""
    first: float = 1.0
    """Layer 2: the score of position 1, which stands for nowhere, in that of a letter half a digit off."""
    nearness: float = -1.0
    """The factor of j² in the keys of a lookup."""
    gate: float = 1.0
    """What closes the way from a pointer to ``follow``, in n, the largest pointer."""
    nowhere: float = 2.0
    """Logit of ⊥ where the pointer is 0, in that of the letter read there."""


def digits_of_letters(alphabet: int) -> int:
    """How many binary digits tell the letters apart."""
    return max(1, (alphabet - 1).bit_length())


def coordinates(alphabet: int) -> Space:
    """What a position holds. Digits are 0 or 1, pointers and positions are 0 to n."""
    digits = digits_of_letters(alphabet)
    return Space(
        one=1,
        position=1,
        square=1,
        first=1,  # 1 at the first position
        letter=digits,
        previous=digits,  # the letter before; zeros at the first position
        far=1,  # f_a
        near=1,  # f_{a-1}
        answer=digits,  # the letter at f_a
        found_far=1,  # what attention has just fetched
        found_near=1,
        found_answer=digits,
        follow=1,  # far or near, whichever the next layer follows
        turn=1,  # the digit of p - 1 that decides it
        digits_left=1,  # the digits after that one, as a number
    )


def doublings(p: int) -> int:
    """⌈log2 p⌉, how often the third layer runs."""
    return (p - 1).bit_length()


def build_phop(p: int, n: int, alphabet: int = 4, constants: Constants | None = None) -> FormalTransformer:
    """p-hop over up to n letters, as in ``PHop``: every position answers with a letter or ⊥, token ``alphabet``."""
    task = PHop(p=(p,), n=n, alphabet=alphabet, sampler="uniform")  # says what is wrong with p, n or alphabet
    c = constants or Constants()
    digits = digits_of_letters(alphabet)
    space = coordinates(alphabet)
    one, position, first = (space.unit(name) for name in ("one", "position", "first"))
    letter, previous = space.read("letter"), space.read("previous")
    place = position - first  # f_0, with 0 for the first position

    def lookup(target: Tensor, value: Tensor, output: Tensor) -> Head:
        """Fetch ``value`` from position ``target``."""
        query = c.sharpness * torch.stack([2 * target, one])
        return Head(query, torch.stack([position, c.nearness * space.unit("square")]), value, output)

    previous_letter = FormalLayer(
        heads=(lookup(position + c.before * one, letter, previous),),
        # The first position can only look at itself; what it sees is taken away again.
        W1=previous + first - one,
        b1=zeros(digits),
        W2=-previous.T,
        b2=zeros(space.size),
    )

    match = c.match * n
    standing = c.recency * position + c.first * match * (digits - 1) * first
    induction = Head(
        # Digits as ±1, so that a wrong one costs 2·match; the first position, which has no letter before it, has 0.
        query=c.sharpness * torch.cat([match * (2 * letter - one), one[None]]),
        key=torch.cat([2 * previous - (one - first), standing[None]]),
        value=torch.cat([place[None], letter]),
        output=space.read("found_far", "found_answer"),
    )
    follow_pointer = lookup(
        space.unit("follow"), space.read("far", "near", "answer"), space.read("found_far", "found_near", "found_answer")
    )
    half = 2.0 ** max(doublings(p) - 2, 0)  # the weight of the highest of the digits that are left
    arrive = _feed_forward(space, gate=c.gate * n, half=half)

    places = torch.arange(1, n + 1, dtype=torch.float64)[:, None]  # [n, 1]
    positions = one + places * position + places**2 * space.unit("square") + (places == 1) * first
    positions = positions + (positions @ place)[:, None] * space.unit("found_near")  # layer 2 "finds" f_0
    highest = 2 ** max(doublings(p) - 1, 0)
    positions = positions + (p - 1) // highest * space.unit("turn") + (p - 1) % highest * space.unit("digits_left")

    binary = (torch.arange(alphabet)[:, None] >> torch.arange(digits)) & 1  # [alphabet, digits]
    letters = binary.double() @ letter  # [alphabet, d]
    letter_logits = (2 * binary.double() - 1) @ (2 * space.read("answer") - one)
    nowhere_logit = c.nowhere * digits * (one - space.unit("far"))
    return FormalTransformer(
        plan=LoopPlan.parse(f"1x(1,1,{doublings(p)})" if p > 1 else "1x(1,1)"),
        tokens=torch.cat([letters, zeros(len(task.vocabulary) - alphabet, space.size)]),
        positions=positions,
        layers=(
            previous_letter,
            replace(arrive, heads=(induction,)),
            *([replace(arrive, heads=(follow_pointer,))] if p > 1 else []),
        ),
        output=torch.cat([letter_logits, nowhere_logit[None]]),
    )


def _feed_forward(space: Space, gate: float, half: float) -> FormalLayer:
    """What was found takes the place of what was held; ``follow`` becomes far or near, as the turn says; the next digit
    becomes the turn. Everything here is 0 or more, so that a relu lets it through."""
    units: list[tuple[Tensor, float, Tensor]] = []  # what a unit reads, its bias, and what it adds

    for name in ("far", "near", "answer"):
        for held, found in zip(space.read(name), space.read(f"found_{name}"), strict=True):
            units += [(found, 0.0, held - found), (held, 0.0, -held)]

    one, turn, follow = space.unit("one"), space.unit("turn"), space.unit("follow")
    units.append((follow, 0.0, -follow))
    units.append((space.unit("found_far") - gate * (one - turn), 0.0, follow))
    units.append((space.unit("found_near") - gate * turn, 0.0, follow))

    left = space.unit("digits_left")
    takes_one = turn - 2 * half * left  # relu(left - half + 1) - relu(left - half) is 1 where left ≥ half, else 0
    units += [(left, 1 - half, takes_one), (left, -half, -takes_one), (turn, 0.0, -turn), (left, 0.0, left)]

    reads, biases, adds = zip(*units, strict=True)
    return FormalLayer(
        heads=(),
        W1=torch.stack(reads),
        b1=torch.tensor(biases, dtype=torch.float64),
        W2=torch.stack(adds, dim=1),
        b2=zeros(space.size),
    )


def hops_held(p: int) -> tuple[int, ...]:
    """How many hops ``far`` makes after the second layer, and after each one that follows.

    >>> hops_held(16), hops_held(5)
    ((1, 2, 4, 8, 16), (1, 2, 3, 5))
    """
    return tuple(1 + (p - 1) // 2**left for left in range(doublings(p), -1, -1))


def build_looped(p: int, n: int, alphabet: int = 4, constants: Constants | None = None) -> FormalTransformer:
    """One layer, looped ⌈log2 p⌉ + 2 times on `#` and the letters; `#` is token ``alphabet`` + 1."""
    c = constants or Constants()
    return simulate(build_phop(p, n, alphabet, c), bounds_of_phop(n, alphabet, c))


def bounds_of_phop(n: int, alphabet: int, constants: Constants) -> Bounds:
    """Theorem 5.2's bounds, for all inputs: no pointer exceeds n, no lookup scores over βn² and no match over β(2b+1)n,
    where letters have b digits."""
    digits = digits_of_letters(alphabet)
    return Bounds(
        scores=constants.sharpness * n * max(n, 2 * digits + 1) + SOFTMAX_MARGIN,
        preactivations=n,
        logits=constants.nowhere * digits * n + SOFTMAX_MARGIN,
    )


def draw(p: int, n: int, alphabet: int, inputs: int, seed: int) -> tuple[Tensor, Tensor]:
    """``inputs`` sequences and the answer at every position, [inputs, n] each. The first is the hardest for layer 2: a
    last letter that is new, after letters that differ from it in one digit. Then come uniform ones and, where n has
    room for p hops, as many planted ones. The answers are the task's own."""
    uniform = PHop(p=(p,), n=n, alphabet=alphabet, sampler="uniform", supervision="every")
    hardest = [0] * (n - 1) + [1]
    tokens, wanted = [torch.tensor([hardest])], [torch.tensor([uniform.solve(hardest)])]
    tasks = [uniform, *([replace(uniform, sampler="planted")] if n >= 2 * p + 1 else [])]
    for i, task in enumerate(tasks):
        batch = task.sample(range((inputs - 1 + i) // len(tasks)), seed, "test")
        tokens.append(batch.tokens)
        wanted.append(batch.targets)
    return torch.cat(tokens), torch.cat(wanted)


@torch.no_grad()
def answers(model: LoopedTransformer, tokens: Tensor, start: int | None = None) -> Tensor:
    """What a model answers at every letter, [B, n] -> [B, n]; the looped one wants its `#`, ``start``, before them."""
    if start is not None:
        tokens = torch.cat([torch.full_like(tokens[:, :1], start), tokens], dim=1)
    choices = torch.cat([model(few).argmax(-1) for few in tokens.split(8)])  # larger batches are slower, for memory
    return choices if start is None else choices[:, 1:]


def smallest_constant(field: str, p: int, tokens: Tensor, wanted: Tensor, dtype: torch.dtype = torch.float64) -> float:
    """The smallest value of one constant, the others as they are, with which every position of ``tokens`` [B, n] is
    answered as ``wanted``.

    On 100 sequences of 256 letters, for p = 31 and 32: sharpness 7.8 in float64 and in float32, match 0.997, gate
    0.998, nowhere 1.
    """

    def holds(value: float) -> bool:
        built = build_phop(p, tokens.shape[1], constants=replace(Constants(), **{field: value}))
        return torch.equal(answers(built.model().to(dtype), tokens), wanted)

    return bisect(holds, 0.0, getattr(Constants(), field), steps=14)


def one_hot_sharpness(s: int) -> int:
    """The smallest whole β for which e^-β rounds to 0 in F_s, so that a max-subtracted softmax is one-hot."""
    return math.ceil((s + 1) * math.log(2))


def wrong_in_precision(p: int, tokens: Tensor, wanted: Tensor, s: int, softmax: Softmax, sharpness: int) -> int:
    """How many positions of ``tokens`` [B, n] are not answered as ``wanted`` when everything is rounded to F_s."""
    built = build_phop(p, tokens.shape[1], constants=Constants(sharpness=sharpness))
    try:
        return int((forward(built, tokens, s, softmax).argmax(-1) != wanted).sum())
    except InputError:  # a weight is not in F_s
        return wanted.numel()


def smallest_precision(p: int, tokens: Tensor, wanted: Tensor) -> int | None:
    """The smallest s for which the construction, with a max-subtracted softmax that is one-hot, is exact in F_s on
    ``tokens`` [B, n]; None if it is more than ``precision`` can do.

    Products reach 2βn², so it is about 2·log2 n + log2 s + 1: for n = 256 it is 21, for n = 32 it is 15. (Attention
    that is only nearly one-hot, β = 8, is still exact in F_20 for n = 256.)
    """
    for s in range(1, MOST_BITS + 1):
        if wrong_in_precision(p, tokens, wanted, s, "shifted", one_hot_sharpness(s)) == 0:
            return s
    return None


def levels_told_apart(s: int, softmax: Softmax) -> int:
    """How many scores F_s has room for such that, of any two, softmax gives the higher one all the weight: over so many
    distances can "the most recent match" be one-hot.

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


def prove(p: int = 16, n: int = 256, inputs: int = 400, seed: int = 0, show: bool = False) -> Proof:
    """Pointer doubling and its looped simulation against the task's answers, at every position of ``inputs`` sequences
    of n letters; ``show`` traces the looped one on a short sequence."""
    if inputs < 1:
        raise InputError(f"inputs={inputs}: allowed is 1 or more")
    tokens, wanted = draw(p, n, ALPHABET, inputs, seed)
    built, looped = build_phop(p, n), build_looped(p, n)
    models = {"phop": built.model(), "phop-looped": looped.model()}
    checks = []
    for what, model, start in (
        (f"{built.plan.typography} transformer", models["phop"], None),
        (f"{looped.plan.typography} looped transformer", models["phop-looped"], START),
    ):
        began = time.monotonic()
        wrong = int((answers(model, tokens, start) != wanted).sum())
        checks.append(Check(f"{what}: the answer at every position", wanted.numel(), wrong, time.monotonic() - began))

    began = time.monotonic()
    few, wanted_of_few = tokens[:4], wanted[:4]
    s = smallest_precision(p, few, wanted_of_few)
    if s is not None:
        wrong = wrong_in_precision(p, few, wanted_of_few, s, "shifted", one_hot_sharpness(s))
        what = f"in F_{s}, the smallest that will do, with a max-subtracted softmax: the answer at every position"
        checks.append(Check(what, wanted_of_few.numel(), wrong, time.monotonic() - began))
    notes = (
        f"{int((wanted == ALPHABET).sum())} of the {wanted.numel()} answers are ⊥",
        "the claimed ⌊log2 p⌋+2 layers are enough for powers of two; for other p this construction takes ⌈log2 p⌉+2: "
        "layer 2 reaches one hop, and following a pointer at most doubles the reach",
        "the paper's F_s rounds exp and subtracts no maximum: then a head can be one-hot over at most "
        f"{levels_told_apart(8, 'plain')} distances, whatever s, where the most recent of {n} places has to be found",
    )
    return Proof(
        name="p-hop",
        title=f"Corollary 5.3: {p}-hop over {n} letters by looping one layer {looped.plan.depth} times",
        sizes=(*_sizes(p, built), *claimed_sizes("looped", built, looped)),
        checks=tuple(checks),
        models=models,
        notes=notes,
        traces=(trace(p, seed=seed),) if show else (),
    )


def _sizes(p: int, built: FormalTransformer) -> tuple[Size, ...]:
    power_of_two = p & (p - 1) == 0
    constant = "O(1): the same for all n and p"
    return (
        Size(
            "layers, ⌊log2 p⌋+2",
            p.bit_length() + 1,
            built.plan.depth,
            "" if power_of_two else "⌈log2 p⌉+2: p is not a power of two",
        ),
        Size("distinct layers", 3, built.plan.distinct_layers),
        Size("heads", 1, built.n_heads),
        Size("embedding", None, built.d, constant),
        Size("attention width", None, built.d_attn, constant),
        Size("hidden units", None, built.d_ff, constant),
    )


def trace(p: int, letters: str | None = None, seed: int = 0) -> Trace:
    """What every position holds after each loop of the looped model: where its pointer leads, and at last its answer.

    >>> for row in trace(2, "acbacbba").rows:
    ...     print(row[0].ljust(24), *(cell.rjust(2) for cell in row[1]))
    loop 1, letter before     ·  a  c  b  a  c  b  b
    loop 2, 1 hop             ⊥  ⊥  ⊥ →2 →3 →4 →7 →5
    loop 3, 2 hops            ⊥  ⊥  ⊥  ⊥  ⊥ →2 →7 →3
    answer                    ⊥  ⊥  ⊥  ⊥  ⊥  c  b  b
    """
    if letters is None:
        n = max(24, 2 * p + 1)
        tokens = PHop(p=(p,), n=n, alphabet=ALPHABET).sample(range(1), seed, "test").tokens
    else:
        wrong = sorted(set(letters) - set(LETTERS[:ALPHABET]))
        if wrong or not letters:
            raise InputError(f"letters={letters!r}: allowed are one or more of {', '.join(LETTERS[:ALPHABET])}")
        tokens = torch.tensor([[LETTERS.index(letter) for letter in letters]])
    n = max(tokens.shape[1], p)
    space, looped = coordinates(ALPHABET), build_looped(p, n)
    with_start = torch.cat([torch.tensor([[START]]), tokens], dim=1)
    with torch.no_grad():
        states = [thought.state[0, 1:] for thought in looped.model().thoughts(with_start)]  # [n, d + 5] each

    place_value = 2 ** torch.arange(digits_of_letters(ALPHABET), dtype=torch.float64)
    previous = (states[0][:, space["previous"]] @ place_value).round().int().tolist()
    rows = [("loop 1, letter before", ("·", *(LETTERS[letter] for letter in previous[1:])))]
    for loop, (hops, state) in enumerate(zip(hops_held(p), states[1:], strict=True), start=2):
        pointers = state[:, space["far"]].squeeze(1).round().int().tolist()
        cells = tuple(f"→{pointer}" if pointer else "⊥" for pointer in pointers)
        rows.append((f"loop {loop}, {hops} hop{'s' * (hops > 1)}", cells))
    vocabulary = (*LETTERS[:ALPHABET], "⊥")
    choices = answers(looped.model(), tokens, START)[0].tolist()
    rows.append(("answer", tuple(vocabulary[choice] for choice in choices)))
    columns = tuple(f"{i}{LETTERS[letter]}" for i, letter in enumerate(tokens[0].tolist(), start=1))
    return Trace(f"{p}-hop: where the pointer of each position leads", columns, tuple(rows))
