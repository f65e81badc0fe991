"""Corollary 5.3: p-hop by pointer doubling, in ⌈log2 p⌉ + 2 layers of which 3 are distinct, and in one looped layer.

Let f be one hop, the paper's find_1, and f_a be a hops; 0 means nowhere, and f(0) = 0. Two layers find f. After that, a
position that follows its pointer and takes over the pointer held there doubles its reach:

    layer 1       every position fetches the letter before it;
    layer 2       it looks for its own letter among those, and the most recent match is f_1;
    layer 3 …     f_2a = f_a ∘ f_a: the same layer, ⌈log2 p⌉ times.

Each pointer brings along the letter it points to, so no lookup is left at the end. Where p is no power of two, a
position keeps two pointers, f_a (``far``) and f_{a-1} (``near``), and follows one of them: f_a leads to f_2a and
f_{2a-1}, f_{a-1} to f_{2a-1} and f_{2a-2}. It starts with f_1 and f_0, reads the ⌈log2 p⌉ binary digits of p - 1,
highest first, follows ``far`` at a 1 and ``near`` at a 0, and arrives at f_p. For p = 2^k all digits are 1.

Attention finds position t with keys (j, -j²) and query β(2t, 1): the score β(t² - (j-t)²) is largest at j = t, by β or
more. Nowhere, t = 0, lands on position 1, whose own pointer is 0, so ⊥ stays ⊥ without a rule of its own.

>>> task = PHop(p=(5,), n=12, alphabet=3, sampler="uniform", supervision="every")
>>> built = build_phop(p=5, n=12, alphabet=3)
>>> str(built.plan), built.d, built.n_heads, built.d_attn, built.d_ff
('1x(1,1,3)', 19, 1, 4, 15)
>>> batch = task.sample(range(100), seed=0, split="test")
>>> bool((built.model()(batch.tokens).argmax(-1) == batch.targets).all())
True
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.model import LoopedTransformer
from loopt.plan import LoopPlan
from loopt.tasks.phop import LETTERS, PHop
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, HiddenUnits, Space, zeros
from loopt.theory.proof import Trace
from loopt.theory.simulation import SOFTMAX_MARGIN, Bounds, simulate

ALPHABET = 4
START = ALPHABET + 1
"""The token `#`, after the letters and ⊥."""


@dataclass(frozen=True)
class Constants:
    """The numbers of the construction. Sharpness, match, gate and nowhere have slack, which ``test_thresholds`` in
    tests/theory/test_phop_theorem.py measures."""

    sharpness: float = 40.0
    """β, by which the best attention score is above the others at least."""
    before: float = -1.0
    """The offset from its own position at which layer 1 looks."""
    match: float = 1.0
    """The score of half a digit of a letter in layer 2, in units of n; recency alone can score n - 1."""
    recency: float = 1.0
    """The score of one position later in layer 2."""
    first: float = 1.0
    """The score of position 1, which stands for nowhere, in layer 2, in units of a letter half a digit off."""
    nearness: float = -1.0
    """The factor of j² in the keys of a lookup."""
    gate: float = 1.0
    """What shuts off the pointer that is not followed, in units of n, the largest pointer."""
    nowhere: float = 2.0
    """The logit of ⊥ where the pointer is 0, in units of the logit of the letter read there."""


def digits_of_letters(alphabet: int) -> int:
    """Returns how many binary digits tell the letters apart."""
    return max(1, (alphabet - 1).bit_length())


def coordinates(alphabet: int) -> Space:
    """Returns the coordinates of the residual stream. Digits are 0 or 1, pointers and positions 0 to n."""
    digits = digits_of_letters(alphabet)
    return Space(
        one=1,
        position=1,
        square=1,
        first=1,  # 1 at the first position
        letter=digits,
        previous=digits,  # the letter before, zeros at the first position
        far=1,  # f_a
        near=1,  # f_{a-1}
        answer=digits,  # the letter at f_a
        found_far=1,  # found_*: fetched by attention
        found_near=1,
        found_answer=digits,
        follow=1,  # far or near: the pointer that the next layer follows
        turn=1,  # the digit of p - 1 that chooses it
        digits_left=1,  # the digits after it, as a number
    )


def doublings(p: int) -> int:
    """Returns ⌈log2 p⌉, how often the third layer runs."""
    return (p - 1).bit_length()


def build_phop(p: int, n: int, alphabet: int = ALPHABET, constants: Constants | None = None) -> FormalTransformer:
    """Builds p-hop over up to n letters: every position answers with a letter or with ⊥, token ``alphabet``."""
    task = PHop(p=(p,), n=n, alphabet=alphabet, sampler="uniform")  # refuses a bad p, n or alphabet
    c = constants or Constants()
    digits = digits_of_letters(alphabet)
    space = coordinates(alphabet)
    one, position, first = (space.unit(name) for name in ("one", "position", "first"))
    letter, previous = space.read("letter"), space.read("previous")
    place = position - first  # f_0, with 0 for the first position

    def lookup(target: Tensor, value: Tensor, output: Tensor) -> Head:
        """Builds a head that fetches ``value`` from position ``target``."""
        query = c.sharpness * torch.stack([2 * target, one])
        return Head(query, torch.stack([position, c.nearness * space.unit("square")]), value, output)

    previous_letter = FormalLayer(
        heads=(lookup(position + c.before * one, letter, previous),),
        # The first position can only fetch its own letter, which the feed-forward takes away again.
        W1=previous + first - one,
        b1=zeros(digits),
        W2=-previous.T,
        b2=zeros(space.size),
    )

    match = c.match * n
    standing = c.recency * position + c.first * match * (digits - 1) * first
    induction = Head(
        # Digits are ±1, so that a wrong one costs 2·match; the first position, with no letter before it, has 0.
        query=c.sharpness * torch.cat([match * (2 * letter - one), one[None]]),
        key=torch.cat([2 * previous - (one - first), standing[None]]),
        value=torch.cat([place[None], letter]),
        output=space.read("found_far", "found_answer"),
    )
    follow_pointer = lookup(
        space.unit("follow"), space.read("far", "near", "answer"), space.read("found_far", "found_near", "found_answer")
    )
    arrive = replace_pointers(space, gate=c.gate * n, half=first_half(p))

    places = torch.arange(1, n + 1, dtype=torch.float64)[:, None]  # [n, 1]
    positions = one + places * position + places**2 * space.unit("square") + (places == 1) * first
    positions = positions + (positions @ place)[:, None] * space.unit("found_near")  # layer 2 "finds" f_0
    positions = positions + schedule_of_digits(p, space)

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


def replace_pointers(space: Space, gate: float, half: float) -> FormalLayer:
    """Builds the feed-forward that replaces what was held by what was found, writes far or near to ``follow``, as
    ``turn`` says, and the next digit to ``turn``. All of these are 0 or more, so that ReLU passes them unchanged."""
    units = HiddenUnits()
    for name in ("far", "near", "answer"):
        for held, found in zip(space.read(name), space.read(f"found_{name}"), strict=True):
            units.add(found, 0.0, held - found)
            units.add(held, 0.0, -held)

    one, turn = space.unit("one"), space.unit("turn")
    pointers = (space.read(name) for name in ("follow", "found_far", "found_near"))
    for follow, far, near in zip(*pointers, strict=True):
        units.add(follow, 0.0, -follow)
        units.add(far - gate * (one - turn), 0.0, follow)
        units.add(near - gate * turn, 0.0, follow)

    left = space.unit("digits_left")
    takes_one = turn - 2 * half * left  # relu(left - half + 1) - relu(left - half) is 1 where left ≥ half, else 0
    units.add(left, 1 - half, takes_one)
    units.add(left, -half, -takes_one)
    units.add(turn, 0.0, -turn)
    units.add(left, 0.0, left)
    return units.layer()


def first_half(p: int) -> float:
    """Returns the place value of the highest digit of p - 1 after the first."""
    return 2.0 ** max(doublings(p) - 2, 0)


def schedule_of_digits(p: int, space: Space) -> Tensor:
    """Returns what every position holds of the digits of p - 1: the first, and the number that the others make."""
    highest = 2 ** max(doublings(p) - 1, 0)
    return (p - 1) // highest * space.unit("turn") + (p - 1) % highest * space.unit("digits_left")


def hops_held(p: int) -> tuple[int, ...]:
    """Returns how many hops ``far`` makes after the second layer and after each later one.

    >>> hops_held(16), hops_held(5)
    ((1, 2, 4, 8, 16), (1, 2, 3, 5))
    """
    return tuple(1 + (p - 1) // 2**left for left in range(doublings(p), -1, -1))


def build_looped(p: int, n: int, alphabet: int = ALPHABET, constants: Constants | None = None) -> FormalTransformer:
    """Builds one layer, looped ⌈log2 p⌉ + 2 times on `#` and the letters; `#` is token ``alphabet`` + 1."""
    c = constants or Constants()
    return simulate(build_phop(p, n, alphabet, c), bounds_of_phop(n, alphabet, c))


def bounds_of_phop(n: int, alphabet: int, constants: Constants) -> Bounds:
    """Returns Theorem 5.2's bounds for all inputs: no pointer exceeds n, no lookup scores over βn², and no match over
    β(2b+1)n, where letters have b digits."""
    digits = digits_of_letters(alphabet)
    return Bounds(
        scores=constants.sharpness * n * max(n, 2 * digits + 1) + SOFTMAX_MARGIN,
        preactivations=n,
        logits=constants.nowhere * digits * n + SOFTMAX_MARGIN,
    )


def draw(p: int, n: int, alphabet: int, inputs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns ``inputs`` sequences and the task's answers at every position, [inputs, n] each.

    The first sequence is the hardest for layer 2: a new last letter, after letters that differ from it in one digit.
    Then come uniform ones and, where n has room for p hops, as many planted ones."""
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
    """Returns a model's answer at every letter, [B, n] -> [B, n]. The looped model needs `#`, its ``start``, first."""
    if start is not None:
        tokens = torch.cat([torch.full_like(tokens[:, :1], start), tokens], dim=1)
    few = max(1, 8 * 256**2 // tokens.shape[1] ** 2)  # larger batches are slower to allocate
    choices = torch.cat([model(some).argmax(-1) for some in tokens.split(few)])
    return choices if start is None else choices[:, 1:]


def trace(p: int, letters: str | None = None, seed: int = 0) -> Trace:
    """Returns where each position's pointer leads after each loop of the looped model, and at last its answer.

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
