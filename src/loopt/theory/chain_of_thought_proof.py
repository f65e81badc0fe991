"""The proof of Theorem 5.4: chains of thought beside their looped simulation, on addition and random transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.limits import WORK_PER_SECOND, require_affordable
from loopt.model import LoopedTransformer
from loopt.tasks.binary_addition import WORDS, BinaryAddition
from loopt.tasks.groups import group
from loopt.theory.chain_of_thought import (
    Constants,
    bits_for,
    build_looped,
    build_masked,
    build_uncounted,
    chain_of_thought_in_precision,
    coordinates,
    looped_states,
    read_out,
    run_in_precision,
    run_looped,
    run_masked,
    with_dummies,
)
from loopt.theory.chain_of_thought_cases import (
    CHUNK,
    Case,
    addition_case,
    composing_case,
    random_case,
    small_case,
)
from loopt.theory.chain_of_thought_certificate import certify
from loopt.theory.controls import Control, Damage, change_layer, cool, scaled
from loopt.theory.examples import (
    all_additions,
    all_words,
    rounded,
)
from loopt.theory.formal import FormalTransformer
from loopt.theory.gates import signed_binary
from loopt.theory.precision import FixedPoint, attention_maps, weight_outside
from loopt.theory.proof import AttentionMaps, Check, Proof, Size, Tally, Trace
from loopt.theory.thresholds import bisect

PAIRS_PER_SECOND = 200
"""About how many pairs of numbers are added and checked in a second, on one CPU core."""
LONGEST = 3600
"""How many seconds adding them may take."""
TOLERANCE = 1e-9
RANDOM_SHAPES = ((1, 3, 5, 6), (2, 6, 3, 9), (3, 4, 4, 8), (6, 5, 3, 12))
"""L, |V|, n and m of the random transformers."""
SMALL_SHAPES = ((1, 3, 3, 6), (2, 4, 3, 5), (3, 3, 4, 4))
"""The same of those that run in F_s."""
BITS = 8
"""The s of F_s in which they run."""
SAMPLED_WORDS = 4
MOST_PROMPTS = 1024
FEW = 32
"""How many inputs of the user's own transformer are run in F_s, which is slow."""

Builder = Callable[[FormalTransformer, int, int, Constants], FormalTransformer]
Runner = Callable[[LoopedTransformer, Tensor, int], Tensor]


@dataclass(frozen=True)
class Thresholds:
    """The limits of the constants that have slack; beyond them some token is wrong."""

    beta: float
    """The smallest β."""
    gap: float
    """The largest δ, in units of θ's gap."""


def thresholds(case: Case) -> Thresholds:
    """Returns the limits of β and δ by bisection, each with the other as it is. A δ of one gap is always enough.

    >>> found = thresholds(addition_case(bits=3))
    >>> [round(value, 2) for value in (found.beta, found.gap)]
    [1.14, 1.24]
    """

    def works(**changed: float) -> bool:
        looped = build_looped(case.theta, case.n, case.m, replace(case.constants, **changed)).model()
        return torch.equal(run_looped(looped, case.prompts, case.m), case.tokens)

    return Thresholds(
        beta=bisect(lambda beta: works(beta=beta), 0.0, case.constants.beta),
        gap=1 / bisect(lambda slope: slope > 0 and works(gap=case.gap / slope), 0.0, 2.0),
    )


@torch.no_grad()
def drift(theta: FormalTransformer, looped: LoopedTransformer, states: list[Tensor], tokens: Tensor) -> Tensor:
    """Returns the largest difference, over loops and positions, of the residual stream from the proof's: [B].

    After loop t, positions 1 to n+t should hold the embedding of θ's own ``tokens``, with a counter of n+t."""
    m = len(states)
    n = tokens.shape[1] - m
    count, expected = coordinates(theta, n, m, "counter")["count"], looped.embed(tokens)  # [B, n+m, D]
    worst = []
    for t, state in enumerate(states, start=1):
        expected[..., count] = signed_binary(torch.tensor(n + t), bits_for(n, m))
        worst.append((state - expected)[:, : n + t].abs().amax((1, 2)))
    return torch.stack(worst).amax(0)


def check(bits: int, name: str = "S5") -> None:
    """Raises an InputError where ``prove`` would take too long or too much memory, or has no such group."""
    require(1 <= bits <= 64, "bits", bits, "1 to 64", InputError)
    what = f"adding all {4**bits:,} pairs of numbers of {bits} bits"
    require_affordable(what, seconds=4**bits // PAIRS_PER_SECOND, longest=LONGEST)
    V = group(name).order + 1
    require_affordable(f"chain of thought over the {V - 1:,} elements of {name}", memory=8 * 4 * V * V * (3 * V + 100))


def prove(bits: int = 6, seed: int = 0, show: bool = False, control: Control | None = None, name: str = "S5") -> Proof:
    """Checks addition of 1 to ``bits`` bits, four random transformers and the composition of a group's elements one by
    one, on all of their inputs, or on sampled ones where said; ``show`` traces the addition of 11 and 6, and a word of
    the group."""
    check(bits, name)
    change = control or Control()
    first = min(bits, 1 - min(change.loops, 0))  # one loop has to be left
    additions = [addition_case(k) for k in range(first, bits + 1)]
    randoms = [random_case(seed + i, *shape) for i, shape in enumerate(RANDOM_SHAPES)]
    composing = composing_case(name, 6, SAMPLED_WORDS, seed)
    checks = [_check_addition(additions), _check_composition(composing, name)]
    named = ((f"addition, {first} to {bits} bits", additions), ("random transformers", randoms))
    for what, cases in named:
        checks += [
            _check_tokens(f"{what}: mask from outside", cases, build_masked, run_masked, change),
            *_check_looped(what, cases, change),
            _check_tokens(f"{what}: looped, without a counter", cases, build_uncounted, run_looped, change),
        ]
    small = [small_case(seed, *shape) for shape in SMALL_SHAPES]
    checks += [
        _check_composing(composing, change, name),
        _check_weights([*additions, *randoms], None, change),
        _check_weights(small, BITS, change),
        *(_check_in_precision(case, BITS, change) for case in small),
    ]
    largest = additions[-1]
    theta, n, m = largest.theta, largest.n, largest.m
    looped, uncounted = (change(build(theta, n, m, largest.constants)) for build in (build_looped, build_uncounted))
    return Proof(
        title=f"Theorem 5.4: a looped transformer simulates chain of thought; sizes for addition of {bits} bits",
        sizes=_sizes(largest, looped, uncounted),
        checks=tuple(checks),
        models={
            f"addition-{bits}-chain": theta.model(),
            f"addition-{bits}-looped": looped.model(),
            f"addition-{bits}-uncounted": uncounted.model(),
        },
        tasks={
            f"addition-{bits}-chain": BinaryAddition(bits=bits),
            f"addition-{bits}-looped": BinaryAddition(bits=bits, form="dummies"),
            f"addition-{bits}-uncounted": BinaryAddition(bits=bits, form="dummies"),
        },
        notes=_notes(additions, randoms),
        traces=(*_traces(addition_case(bits=4), 11 * 16 + 6, WORDS, "11 + 6"), *figure_4(name, 4, seed + 1))
        if show
        else (),
        maps=(_maps(additions[min(2, len(additions) - 1)]),) if show else (),
    )


def _maps(case: Case) -> AttentionMaps:
    """Returns the maps of the last input of addition; they are those of positions, and the same in every loop."""
    looped = build_looped(case.theta, case.n, case.m, case.constants)
    ids = with_dummies(case.prompts[-1:], case.m, len(case.theta.tokens))[0]
    heads = (("fetch a", "fetch b"), ("logits before",), ("itself",))
    of_layers = attention_maps(looped, ids)[: len(heads)]
    rows = tuple(
        (f"layer {layer}", tuple(zip(names, maps, strict=True)))
        for layer, (names, maps) in enumerate(zip(heads, of_layers, strict=True), start=1)
    )
    tokens = (*_words(case.prompts[-1], WORDS), *["#"] * case.m)
    return AttentionMaps("Addition by chain of thought, in every loop", tokens, rows)


def prove_own(
    theta: FormalTransformer, n: int, m: int, seed: int = 0, show: bool = False, control: Control | None = None
) -> Proof:
    """Checks the looped simulation of the user's own θ, on all inputs of n tokens where those are few, and else on
    sampled ones; ``show`` traces the last of them."""
    require(n >= 1, "n", n, "1 or more", InputError)
    require(m >= 1, "m", m, "1 or more", InputError)
    require(
        n + m <= len(theta.positions), "n+m", n + m, f"up to {len(theta.positions)}, the positions of θ", InputError
    )
    change, V = control or Control(), len(theta.tokens)
    weights = 2 * V * V * (2 * theta.d + 3 * V) * (theta.plan.depth + 2)  # of the feed-forwards
    require_affordable(
        f"chain of thought over {V:,} tokens",
        memory=8 * 3 * weights,
        seconds=MOST_PROMPTS * (n + m) * m * 6 * weights // WORK_PER_SECOND,
    )
    few = V**n <= MOST_PROMPTS
    drawn = torch.randint(V, (MOST_PROMPTS, n), generator=torch.Generator().manual_seed(seed))
    case = Case(theta, all_words(V, n) if few else drawn, m, "every" if few else "sampled")
    if case.gap == 0:
        raise InputError(f"n={n}: on some input θ has two best tokens; allowed is one, as the theorem has it")
    looped, uncounted = (change(build(theta, n, m, case.constants)) for build in (build_looped, build_uncounted))
    in_precision = case if len(case.prompts) <= FEW else replace(case, prompts=case.prompts[:FEW], which="sampled")
    s = max(BITS, bits_for(n, m))
    return Proof(
        title=f"Theorem 5.4: your transformer of {theta.plan.depth} layers, {m} tokens of chain of thought, looped",
        sizes=_sizes(case, looped, uncounted),
        checks=(
            *_check_looped("your transformer", [case], change),
            _check_tokens("your transformer: looped, without a counter", [case], build_uncounted, run_looped, change),
            _check_weights([case], None, change),
            _check_weights([case], s, change),
            _check_in_precision(in_precision, s, change),
        ),
        models={"own-looped": looped.model()},
        notes=(f"gap of the top two logits: {case.gap:.3g}; δ is half of it",),
        traces=_traces(case, -1, tuple(map(str, range(V))), "your transformer") if show else (),
    )


def _scope(cases: list[Case]) -> str:
    """Returns of which inputs the cases have all, and of which some."""
    inputs = sum(len(case.prompts) for case in cases)
    return f"every input, {inputs:,}" if all(case.which == "every" for case in cases) else f"{inputs:,} sampled inputs"


def _check_addition(additions: list[Case]) -> Check:
    tally = Tally()
    for case in additions:
        tally.equal(f"sums of {case.m} bits", case.tokens[:, case.n :], all_additions(case.m)[1])
    return tally.check("chain of thought against adding integers", _scope(additions), "inputs")


def _check_composition(case: Case, name: str) -> Check:
    tally, G = Tally(), group(name)
    products = [[G.product(*word[: t + 1]) for t in range(case.m)] for word in case.prompts[:, :-1].tolist()]
    tally.equal(f"products of {name}", case.tokens[:, case.n :], torch.tensor(products))
    return tally.check(f"{name}, one by one: chain of thought against composing", _scope([case]), "words")


def _check_tokens(what: str, cases: list[Case], build: Builder, run: Runner, change: Control) -> Check:
    tally = Tally()
    for case in cases:
        model = change(build(case.theta, case.n, case.m, case.constants)).model()
        for prompts, tokens in zip(case.prompts.split(CHUNK), case.tokens.split(CHUNK), strict=True):
            tally.equal(f"{case.n} tokens and {case.m} more", run(model, prompts, case.m), tokens)
    return tally.check(what, _scope(cases), "inputs")


def _check_looped(what: str, cases: list[Case], change: Control) -> tuple[Check, Check]:
    """Checks the tokens, and what every position holds after each loop."""
    of_tokens, of_states, worst = Tally(), Tally(), 0.0
    for case in cases:
        model = change(build_looped(case.theta, case.n, case.m, case.constants)).model()
        where = f"{case.n} tokens and {case.m} more"
        for prompts, tokens in zip(case.prompts.split(CHUNK), case.tokens.split(CHUNK), strict=True):
            states = looped_states(model, prompts, case.m)
            of_tokens.equal(where, read_out(model, states[-1]), tokens)
            if len(states) == case.m:
                far = drift(case.theta, model, states, tokens)
                worst = max(worst, float(far.max()))
                of_states.holds(where, far <= TOLERANCE)
            else:
                of_states.holds(f"{len(states)} loops, should be {case.m}", torch.zeros(len(prompts), dtype=torch.bool))
    scope = _scope(cases)
    return (
        of_tokens.check(f"{what}: looped", scope, "inputs"),
        of_states.check(f"{what}: what positions hold after each loop", scope, "inputs", worst),
    )


def _check_composing(case: Case, change: Control, name: str) -> Check:
    """Runs the paper's weights as they are; padded to the widths of one model they would take a gigabyte."""
    tally, looped = Tally(), change(build_looped(case.theta, case.n, case.m, case.constants))
    tally.equal("words", run_in_precision(looped, case.prompts, case.m, None), case.tokens)
    return tally.check(f"{name}, one by one: looped", _scope([case]), "inputs")


def _check_weights(cases: list[Case], s: int | None, change: Control) -> Check:
    """Certifies the looped transformer for every input; in F_s with θ's weights rounded, where any lead is enough."""
    tally = Tally()
    for case in cases:
        theta = case.theta if s is None else rounded(case.theta, s)
        looped = change(build_looped(theta, case.n, case.m, case.constants if s is None else Constants.of(s)))
        tally.add(certify(theta, looped, case.n, case.m, case.gap if s is None else FixedPoint(s).step, s))
    if s is None:
        return tally.check("all layers, over the reals", "every input with that gap", "weights and rows")
    return tally.check(f"all layers, in F_{s}", "every input without ties", "weights, rows, values")


def _check_in_precision(case: Case, s: int, change: Control) -> Check:
    """Runs θ with weights rounded to F_s and its simulation, both in plain F_s."""
    tally, n, m, prompts = Tally(), case.n, case.m, case.prompts
    theta = rounded(case.theta, s)
    looped = change(build_looped(theta, n, m, Constants.of(s)))
    wanted = chain_of_thought_in_precision(theta, prompts, m, s)
    unique = wanted[:, 0] >= 0
    outside = weight_outside(looped, s)
    if outside:
        tally.holds(outside, False)
    else:
        found = run_in_precision(looped, prompts, m, s)
        tally.equal(f"{n} tokens and {m} more", found[unique], wanted[unique])
    ties = int((~unique).sum())
    scope = _scope([case]) + (f", less {ties} with a tie" if ties else "")
    what = f"L={theta.plan.depth}, |V|={len(theta.tokens)}, rounded to F_{s}: looped, in plain F_{s}"
    return tally.check(what, scope, "inputs")


def _sizes(case: Case, looped: FormalTransformer, uncounted: FormalTransformer) -> tuple[Size, ...]:
    theta, s = case.theta, bits_for(case.n, case.m)
    attn = "O(s) more: max(d_attn, 2s, d, |V|), since θ_PE and logits pass through it"
    ff = f"O(s) more: max(d_ff, |V|²+|V|+2d+2) with |V|={len(theta.tokens)}, about the argmax lemma's |V|²"
    return (
        Size("layers in the block", None, looped.plan.distinct_layers, f"L+O(1): L+2 with L={theta.plan.depth}"),
        Size("loops", case.m, looped.plan.depth // looped.plan.distinct_layers),
        Size(
            "embedding size d",
            theta.d + 3 * s,
            looped.d,
            "d+3s is claimed; ours is 2d+3|V|+3s+2, with θ_PE(i), token, logits and distances beside x",
        ),
        Size("embedding size, without a counter", None, uncounted.d, "2d+3|V|+2s+2"),
        Size("attention heads", None, looped.n_heads, "constantly many more: max(H, 1)"),
        Size("head width d_attn", None, looped.d_attn, attn),
        Size("hidden width d_ff", None, looped.d_ff, ff),
    )


@cache
def _slack_of_addition() -> Thresholds:
    return thresholds(addition_case(bits=3))


def _notes(additions: list[Case], randoms: list[Case]) -> tuple[str, ...]:
    gaps = [min(case.gap for case in cases) for cases in (additions, randoms)]
    slack = _slack_of_addition()
    return (
        f"gap of the top two logits: {gaps[0]:.3g} in addition, {gaps[1]:.2g} in random transformers; δ is half of it",
        f"on addition of 3 bits β ≥ {slack.beta:.2f} and δ ≤ {slack.gap:.2f} gaps are enough",
        "the counter can be left out: with a mask of 1 wherever a # was, in every loop, the tokens are the same",
        "the answer is read from the one-hot token; x holds θ_TE(v)+θ_PE(i), from which θ_OUTPUT cannot read v",
    )


def _traces(case: Case, row: int, words: Sequence[str], what: str) -> tuple[Trace, Trace]:
    """Returns the halves of Figure 4 for one input: one more token per step; all at once, corrected by each loop."""
    prompt, chain = case.prompts[[row]], _words(case.tokens[row], words)
    looped = build_looped(case.theta, case.n, case.m, case.constants).model()
    steps = [("input", (*_words(prompt[0], words), *[""] * case.m))]
    loops = [("input", (*_words(prompt[0], words), *["#"] * case.m))]
    for t, state in enumerate(looped_states(looped, prompt, case.m), start=1):
        settled, tokens = case.n + t, _words(read_out(looped, state)[0], words)
        steps.append((f"step {t}", (*chain[:settled], *[""] * (case.m - t))))
        loops.append((f"loop {t}", (*tokens[:settled], *(f"{guess}?" for guess in tokens[settled:]))))
    positions = tuple(str(i) for i in range(1, case.n + case.m + 1))
    left = f"Chain of thought, {what}: every step runs the whole transformer and appends a token"
    right = f"{what}, looped: loop t settles position {case.n}+t; what has a ? is written over later"
    return Trace(left, positions, tuple(steps)), Trace(right, positions, tuple(loops))


def figure_4(name: str, n: int, seed: int) -> tuple[Trace, Trace]:
    """Returns Figure 4 for a word of a group: the chain of thought that composes it element by element, and the latent
    thoughts of the looped model on the same word."""
    case = composing_case(name, n, 1, seed)
    return _traces(case, 0, (*group(name).elements, "="), f"{n} elements of {name}")


def _words(tokens: Tensor, words: Sequence[str]) -> tuple[str, ...]:
    return tuple(words[token] for token in tokens.tolist())


def _shut_the_gate(formal: FormalTransformer) -> FormalTransformer:
    """Makes layer L+2 read a mask of 0, the last coordinate."""
    return change_layer(formal, -1, lambda layer: replace(layer, W1=scaled(layer.W1, 0.0, slice(None), -1)))


BREAKS: dict[str, Damage] = {
    "temperature": cool(0.01, -2),
    "mask": _shut_the_gate,
    "counter": lambda formal: change_layer(formal, -1, lambda layer: replace(layer, b2=-layer.b2)),
    "token": lambda formal: replace(formal, output=scaled(formal.output, -1.0, 0)),
}
"""What ``loopt prove cot --break`` can damage. Mask and counter are not there where the mask comes from outside."""
