"""The proof of Theorem 5.1, for every word: attention sees positions only, and the feed-forward has |G|² cases.

The state of position i before every loop is the embedding of some element and of the position i. Queries and keys do
not read the element, so the n+1 rows of attention are checked once for all words and loops. The feed-forward sees the
two elements that attention fetched, into rooms that hold the same at every position: all |G|² pairs are checked, and
all |G| elements to be erased. That leaves the algorithm, which composes neighbours, in their order, until one element
is left.

>>> s3 = groups.group("S3")
>>> certify(build_group_composition(s3, 8), s3, 8).check("S3", "every word of 8 elements", "cases").exact
True
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.limits import LARGEST, WORK_PER_SECOND, require_affordable
from loopt.model import LoopedTransformer
from loopt.tasks import groups
from loopt.tasks.after_start import AfterStart
from loopt.tasks.group import GroupComposition
from loopt.tasks.groups import Group
from loopt.theory.certificates import MARGIN, ROWS, Variables, copies, feed_forward_is, one_hot
from loopt.theory.controls import Control, Damage, change_layer, cool, scaled
from loopt.theory.formal import FormalTransformer
from loopt.theory.group_composition import (
    algorithm,
    answers,
    answers_in_precision,
    bits_of_element,
    bits_of_position,
    build_group_composition,
    build_in_precision,
    loops,
    numbers_in_scores,
    precision_of,
    residual_space,
    some_words,
)
from loopt.theory.precision import Arithmetic, arithmetic, attention_maps, weight_outside
from loopt.theory.proof import AttentionMaps, Check, Proof, Size, Tally, Trace


def certify(formal: FormalTransformer, group: Group, n: int, s: int | None = None) -> Tally:
    """Checks the construction for all words of n elements, over the reals or in F_s."""
    tally, F = Tally(), arithmetic(s)
    space = residual_space(group, n)
    tally.holds(f"{formal.plan.depth} loops, should be {loops(n)}", formal.plan.depth == loops(n))
    if s is not None:
        outside = weight_outside(formal, s)
        tally.holds(outside, not outside)
    tally.holds("sizes", formal.d == space.size and len(formal.layers) == 1 and formal.n_heads == 2)
    if tally.wrong:
        return tally
    beside = torch.ones(space.size, dtype=torch.bool)
    beside[space["element"]] = False
    tally.equal("tokens beside their code", formal.tokens[:, beside], torch.zeros_like(formal.tokens[:, beside]))
    tally.equal("# stands for e", formal.tokens[-1:], formal.tokens[group.identity, None])
    held = formal.positions[:, space["element"]]
    tally.equal("positions in place of elements", held, torch.zeros_like(held))
    rooms = formal.positions[:, space["left_element"].start :]  # in F_s they hold a constant
    tally.equal("the rooms for two elements, by position", rooms, rooms[:1].expand_as(rooms))

    (layer,), here = formal.layers, torch.arange(n + 1)
    element = space.read("element")
    for head, name, target in zip(layer.heads, ("left", "right"), (2 * here - n - 1, 2 * here - n), strict=True):
        for part in ("query", "key"):
            reads = getattr(head, part)[:, space["element"]]
            tally.equal(f"{name} head: its {part} reads elements", reads, torch.zeros_like(reads))
        queries, keys = (F.matmul(formal.positions, weight.T) for weight in (head.query, head.key))
        one_hot(tally, f"{name} head, attention", F, queries, keys, target.clamp(min=0), causal=True)
        copies(tally, f"{name} head", head, element, space.read(f"{name}_element"))
    _certify_products(tally, F, formal, group, n)
    _certify_output(tally, F, formal, group)
    if s is None:
        _certify_rounding(tally, formal, group, n)
    factors = algorithm([(), *((i,) for i in range(1, n + 1))], lambda left, right: left + right)
    tally.holds("the algorithm's order of factors", factors[-1][-1] == tuple(range(1, n + 1)))
    return tally


def _certify_products(tally: Tally, F: Arithmetic, formal: FormalTransformer, group: Group, n: int) -> None:
    space, (layer,) = residual_space(group, n), formal.layers
    numbers = layer.W1[:, space["here"].start : space["right"].stop]
    tally.equal("hidden units that read positions", numbers, torch.zeros_like(numbers))
    code = formal.tokens[:-1, space["element"]]  # [|G|, m]
    tables = {name: code @ space.read(name) for name in ("element", "left_element", "right_element")}
    variables = Variables(tables, formal.positions[0])
    after = Variables({"element": tables["element"]}, formal.positions[0])
    rule = {"element": (("left_element", "right_element"), group.tensor())}
    feed_forward_is(tally, "feed-forward", F, layer, variables, after, rule)


def _certify_output(tally: Tally, F: Arithmetic, formal: FormalTransformer, group: Group) -> None:
    """Counts for each element at the last position whether it alone is the likeliest."""
    logits = F.matmul(F.add(formal.tokens[:-1], formal.positions[-1]), formal.output.T)
    probabilities = F.softmax(logits)  # [|G|, |G| + 1]
    own = probabilities.diagonal()
    others = probabilities.scatter(1, torch.arange(group.order)[:, None], -1.0).amax(-1)
    tally.holds("the answer for each element", own > others)


def _certify_rounding(tally: Tally, formal: FormalTransformer, group: Group, n: int) -> None:
    """Counts whether what attention leaves to other positions, n e^-40 at most, stays small through all loops: a unit
    of a product multiplies it by its weights, 2m in all."""
    (layer,) = formal.layers
    growth = float((layer.W1.abs().sum(1) * layer.W2.abs().amax(0)).max())
    error = 0.0
    for _ in range(loops(n)):
        error = growth * (error + 2 * n * torch.tensor(-MARGIN).exp().item())
    tally.holds(f"what attention leaves grows to {error:.2g}", error < 1 / (4 * bits_of_element(group)))
    logits = (formal.tokens[:-1] + formal.positions[-1]) @ formal.output.T
    best, second = logits.topk(2).values.unbind(-1)
    room = 2 * error * formal.output.abs().sum(1).max()
    tally.holds("the answer's lead, for each element", best - second > room)


def _one_product_wrong(formal: FormalTransformer) -> FormalTransformer:
    """Turns one bit of what the hidden unit of one pair writes."""

    def turn(W2: Tensor) -> Tensor:
        unit = int((W2[0] != 0).nonzero()[-1 if len(W2[0]) < 5 else 3])
        return scaled(W2, -1.0, 0, unit)

    return change_layer(formal, 0, lambda layer: replace(layer, W2=turn(layer.W2)))


BREAKS: dict[str, Damage] = {
    "product": _one_product_wrong,
    "temperature": cool(0.125, 0),
    "position": lambda formal: replace(formal, positions=scaled(formal.positions, -1.0, -1)),
    "output": lambda formal: replace(formal, output=scaled(formal.output, -1.0, 0)),
}
"""What ``loopt prove group-composition --break`` can damage."""


def check(group: str, n: int, inputs: int) -> None:
    """Raises an InputError where ``prove`` has no such group, or would take too long or too much memory."""
    require(1 <= n <= LARGEST, "n", n, f"1 to {LARGEST}", InputError)
    require(1 <= inputs <= LARGEST, "inputs", inputs, f"1 to {LARGEST}", InputError)
    G = groups.group(group)
    scores, hidden = numbers_in_scores(n), n * (G.order**2 + 6 * bits_of_element(G))
    width = 3 * (bits_of_element(G) + bits_of_position(n))
    words = 2 * inputs * n.bit_length() * width * (scores + hidden)
    pairs = 4 * width * G.order**4
    require_affordable(
        f"composing words of n={n:,} elements of {group}",
        memory=8 * (scores + hidden + 4 * inputs * n + (8 * width + 3 * ROWS) * G.order**2),
        seconds=(words + pairs) // WORK_PER_SECOND,
    )


def prove(
    group: str = "S5",
    n: int = 64,
    inputs: int = 16,
    seed: int = 0,
    show: bool = False,
    control: Control | None = None,
) -> Proof:
    """Certifies the construction for all words of n elements of ``group``, over the reals and in F_s, and runs the
    model on random words; ``show`` traces the first of them."""
    check(group, n, inputs)
    change = control or Control()
    G = groups.group(group)
    words = some_words(G, n, inputs, seed)
    solve = GroupComposition(group=group, n=n).solve
    right = torch.tensor([solve(word)[-1] for word in words.tolist()])

    s = precision_of(G)
    real, fixed = change(build_group_composition(G, n)), change(build_in_precision(G, n, s))
    model = real.model()
    every, cases = f"every word of {n} elements of {group}", "attention rows, products, codes"
    checks = (
        certify(real, G, n).check("all cases, over the reals", every, cases),
        certify(fixed, G, n, s).check(f"all cases, in F_{s}", every, cases),
        _run("the model in float64", partial(answers, model, G, words), right),
        _run(f"F_{s}", partial(_run_in_precision, fixed, G, words[-4:], s), right[-4:]),
    )
    return Proof(
        title="Theorem 5.1: one layer looped ⌈log2 n⌉ times composes n elements of a finite group",
        sizes=_sizes(G, n, real, fixed, s),
        checks=checks,
        models={f"{group}-n{n}": model, f"{group}-n{n}-F{s}": fixed.model()},
        tasks={f"{group}-n{n}": AfterStart(task=GroupComposition(group=group, n=n))},
        notes=(
            "queries are plus, not minus, the code of the position looked for; the second stored code is [2i-n]_+",
            "# has e's embedding, so its row in the output layer is 0, or it would tie with e",
            f"in F_{s} queries and keys are interleaved with a constant 1, held in the first coordinate of g'",
        ),
        traces=_traces(G, model, words[0]) if show else (),
        maps=(_maps(real, G, words[0]),) if show else (),
    )


def _run_in_precision(formal: FormalTransformer, group: Group, words: Tensor, s: int) -> Tensor:
    if weight_outside(formal, s):
        return torch.full_like(words[:, 0], -1)
    return answers_in_precision(formal, group, words, s)


def _run(what: str, run: Callable[[], Tensor], right: Tensor) -> Check:
    started = time.perf_counter()
    wrong = run() != right
    where = f"word {int(wrong.nonzero()[0])}" if bool(wrong.any()) else ""
    seconds = time.perf_counter() - started
    return Check(
        f"run in {what}", f"{len(right)} sampled words", len(right), "words", int(wrong.sum()), seconds, None, where
    )


def _sizes(group: Group, n: int, real: FormalTransformer, fixed: FormalTransformer, s: int) -> tuple[Size, ...]:
    m, p = (group.order - 1).bit_length(), bits_of_position(n)
    log_n = (n - 1).bit_length()
    return (
        Size("loops T", log_n, real.plan.depth, "" if n > 1 else "a looped model runs at least once"),
        Size("layers", 1, len(real.layers)),
        Size("heads", 2, real.n_heads),
        Size("d", 3 * (m + p), real.d, "" if m else "one bit for an element, which tells e from #"),
        Size("d_ff", group.order**2 + 6 * m, real.d_ff, "" if m else "one bit for an element, which tells e from #"),
        Size("d_attn", log_n, real.d_attn, "max(⌈log2(n+1)⌉, ⌈log2|G|⌉): n+1 positions are told apart, and values fit"),
        Size(f"d_attn in F_{s}", log_n, fixed.d_attn, "interleaved queries and keys are twice as wide"),
        Size("precision s", None, s, "whatever n is: 4^s ≥ 2⌈log2|G|⌉+2, and 2 or more"),
    )


@torch.no_grad()
def _traces(group: Group, model: LoopedTransformer, word: Tensor) -> tuple[Trace, ...]:
    n = len(word)
    ids = torch.cat([torch.tensor([group.order]), word])[None]
    start = model.embed(ids)
    states = [start, *model.walk(start)]
    columns = tuple(f"{i}" for i in range(n + 1))
    after = ["start", *(f"loop {t}" for t in range(1, loops(n) + 1))]
    held = [model.readout(x)[0, :, :-1].argmax(-1).tolist() for x in states]  # without #, which has e's code
    elements = tuple((when, tuple(group.elements[g] for g in row)) for when, row in zip(after, held, strict=True))
    factors = algorithm([(), *((i,) for i in range(1, n + 1))], lambda left, right: left + right)
    products = tuple((when, tuple(_range(row) for row in rows)) for when, rows in zip(after, factors, strict=True))
    return (
        Trace(f"{group.name}: the element that each position holds", columns, elements),
        Trace("the numbers i of the factors g_i whose product each position holds", columns, products),
    )


def _maps(formal: FormalTransformer, group: Group, word: Tensor) -> AttentionMaps:
    ids = torch.cat([torch.tensor([group.order]), word])
    rows = tuple(
        (f"loop {loop}", tuple(zip(("left", "right"), of_loop, strict=True)))
        for loop, of_loop in enumerate(attention_maps(formal, ids), start=1)
    )
    return AttentionMaps("Where each position looks", tuple(str(i) for i in range(len(ids))), rows)


def _range(factors: tuple[int, ...]) -> str:
    """Returns 3-5 for (3, 4, 5), and e for the empty product."""
    if len(factors) < 2:
        return "e" if not factors else str(factors[0])
    return f"{factors[0]}-{factors[-1]}"
