"""The proof of Theorem 5.4: chains of thought beside their looped simulation, on addition and random transformers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.limits import require_affordable
from loopt.model import LoopedTransformer
from loopt.theory.chain_of_thought import (
    Constants,
    bits_for,
    build_looped,
    build_masked,
    build_uncounted,
    chain_of_thought,
    coordinates,
    looped_states,
    read_out,
    run_looped,
    run_masked,
)
from loopt.theory.examples import ADDITION_WORDS, all_additions, build_addition, random_transformer
from loopt.theory.formal import FormalTransformer
from loopt.theory.gates import signed_binary
from loopt.theory.proof import Check, Proof, Size, Trace
from loopt.theory.thresholds import bisect

CHUNK = 64
"""How many inputs run together; larger chunks are slower to allocate."""
PAIRS_PER_SECOND = 200
"""About how many pairs of numbers are added and checked in a second, on one CPU core."""
TOLERANCE = 1e-9
RANDOM_SHAPES = ((1, 3, 5, 6), (2, 6, 3, 9), (3, 4, 4, 8), (6, 5, 3, 12))
"""L, |V|, n and m of the random transformers."""

Builder = Callable[[FormalTransformer, int, int, Constants], FormalTransformer]
Runner = Callable[[LoopedTransformer, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Case:
    """A transformer that thinks in m tokens, and inputs for it."""

    theta: FormalTransformer
    prompts: Tensor  # [B, n]
    m: int

    @property
    def n(self) -> int:
        return self.prompts.shape[1]

    @cached_property
    def tokens(self) -> Tensor:
        """Returns the inputs with θ's own chains of thought, [B, n+m], which the simulation has to reach."""
        model = self.theta.model()
        return torch.cat([chain_of_thought(model, prompts, self.m) for prompts in self.prompts.split(CHUNK)])

    @cached_property
    def gap(self) -> float:
        model = self.theta.model()
        return min(smallest_gap(model, tokens, self.n) for tokens in self.tokens.split(CHUNK))

    @property
    def constants(self) -> Constants:
        """Returns constants with half the gap as δ, so that rounding does not matter."""
        return Constants(gap=self.gap / 2)


@torch.no_grad()
def smallest_gap(model: LoopedTransformer, tokens: Tensor, n: int) -> float:
    """Returns the smallest gap of the top two logits over all steps of these chains of thought."""
    best = model(tokens)[:, n - 1 : -1].topk(2).values  # [B, m, 2]: position n+t-1 chooses token n+t
    return float((best[..., 0] - best[..., 1]).min())


def all_prompts(vocabulary: int, n: int) -> Tensor:
    """Returns every input of n tokens, [vocabulary^n, n]."""
    return torch.cartesian_prod(*[torch.arange(vocabulary)] * n).view(-1, n)


def addition_case(bits: int) -> Case:
    return Case(build_addition(bits), all_additions(bits)[0], bits)


def random_case(seed: int, L: int, vocabulary: int, n: int, m: int) -> Case:
    theta = random_transformer(range(L), seed, d=12, d_ff=16, vocabulary=vocabulary, n_max=n + m)
    return Case(theta, all_prompts(vocabulary, n), m)


@dataclass(frozen=True)
class Thresholds:
    """The limits of the constants that have slack; beyond them some token is wrong."""

    beta: float
    """The smallest β."""
    gate: float
    """The smallest B."""
    gap: float
    """The largest δ, in units of θ's gap."""


def thresholds(case: Case) -> Thresholds:
    """Returns the limits of β, B and δ by bisection, one at a time with the others as they are.

    A δ of one gap and a B of 1 are always enough. Random transformers, whose logits are often close, need that B, and a
    β between 3 and 5; addition needs less:

    >>> found = thresholds(addition_case(bits=3))
    >>> [round(value, 2) for value in (found.beta, found.gate, found.gap)]
    [0.97, 0.81, 1.24]
    """

    def works(**changed: float) -> bool:
        looped = build_looped(case.theta, case.n, case.m, replace(case.constants, **changed)).model()
        return torch.equal(run_looped(looped, case.prompts), case.tokens)

    return Thresholds(
        beta=bisect(lambda beta: works(beta=beta), 0.0, case.constants.beta),
        gate=bisect(lambda gate: works(gate=gate), 0.0, case.constants.gate),
        gap=1 / bisect(lambda slope: slope > 0 and works(gap=case.gap / slope), 0.0, 2.0),
    )


@torch.no_grad()
def drift(theta: FormalTransformer, looped: LoopedTransformer, prompts: Tensor, tokens: Tensor) -> Tensor:
    """Returns the largest difference, over loops and positions, of the residual stream from the proof's: [B].

    After loop t, positions 1 to n+t should hold the embedding of θ's own ``tokens``, with a counter of n+t."""
    n, m = prompts.shape[1], tokens.shape[1] - prompts.shape[1]
    count, expected = coordinates(theta, n, m, "counter")["count"], looped.embed(tokens)  # [B, n+m, D]
    worst = []
    for t, state in enumerate(looped_states(looped, prompts), start=1):
        expected[..., count] = signed_binary(torch.tensor(n + t), bits_for(n, m))
        worst.append((state - expected)[:, : n + t].abs().amax((1, 2)))
    return torch.stack(worst).amax(0)


def check(bits: int) -> None:
    """Raises an InputError where ``prove`` would take too long."""
    require(1 <= bits <= 64, "bits", bits, "1 to 64", InputError)
    require_affordable(f"adding all {4**bits:,} pairs of numbers of {bits} bits", seconds=4**bits // PAIRS_PER_SECOND)


def prove(bits: int = 6, seed: int = 0, show: bool = False) -> Proof:
    """Checks addition of 1 to ``bits`` bits and four random transformers on all of their inputs; ``show`` traces the
    addition of 11 and 6."""
    check(bits)
    additions = [addition_case(k) for k in range(1, bits + 1)]
    randoms = [random_case(seed + i, *shape) for i, shape in enumerate(RANDOM_SHAPES)]
    checks = [_check_addition(additions)]
    for what, cases in ((f"addition, 1 to {bits} bits", additions), ("random transformers", randoms)):
        checks += [
            _check_tokens(f"{what}: mask from outside", cases, build_masked, run_masked),
            _check_tokens(f"{what}: looped", cases, build_looped, run_looped),
            _check_tokens(f"{what}: looped, without a counter", cases, build_uncounted, run_looped),
        ]
    checks.append(_check_states("what positions hold after each loop", [*additions, *randoms]))
    largest = additions[-1]
    theta, n, m = largest.theta, largest.n, largest.m
    looped, uncounted = build_looped(theta, n, m, largest.constants), build_uncounted(theta, n, m, largest.constants)
    return Proof(
        title=f"Theorem 5.4: a looped transformer simulates chain of thought; sizes for addition of {bits} bits",
        sizes=_sizes(largest, looped, uncounted),
        checks=tuple(checks),
        models={"chain-of-thought": theta.model(), "looped": looped.model(), "uncounted": uncounted.model()},
        notes=_notes(additions, randoms),
        traces=_traces(addition_case(bits=4), a=11, b=6) if show else (),
    )


def _check_addition(additions: list[Case]) -> Check:
    started = time.perf_counter()
    wrong = sum(int((case.tokens[:, case.n :] != all_additions(case.m)[1]).any(1).sum()) for case in additions)
    seconds = time.perf_counter() - started
    return Check("chain of thought against adding integers", sum(len(c.prompts) for c in additions), wrong, seconds)


def _check_tokens(what: str, cases: list[Case], build: Builder, run: Runner) -> Check:
    started, wrong = time.perf_counter(), 0
    for case in cases:
        model = build(case.theta, case.n, case.m, case.constants).model()
        for prompts, tokens in zip(case.prompts.split(CHUNK), case.tokens.split(CHUNK), strict=True):
            wrong += int((run(model, prompts) != tokens).any(1).sum())
    return Check(what, sum(len(case.prompts) for case in cases), wrong, time.perf_counter() - started)


def _check_states(what: str, cases: list[Case]) -> Check:
    started, drifts = time.perf_counter(), []
    for case in cases:
        model = build_looped(case.theta, case.n, case.m, case.constants).model()
        for prompts, tokens in zip(case.prompts.split(CHUNK), case.tokens.split(CHUNK), strict=True):
            drifts.append(drift(case.theta, model, prompts, tokens))
    worst = torch.cat(drifts)
    wrong = int((worst > TOLERANCE).sum())
    return Check(what, len(worst), wrong, time.perf_counter() - started, float(worst.max()))


def _sizes(case: Case, looped: FormalTransformer, uncounted: FormalTransformer) -> tuple[Size, ...]:
    theta, s = case.theta, bits_for(case.n, case.m)
    attn = "O(s) more: max(d_attn, s, d, |V|), since x and logits pass through it"
    ff = f"O(s) more: max(d_ff, |V|²+|V|+2) with |V|={len(theta.tokens)}, about the argmax lemma's |V|²"
    return (
        Size("layers in the block", None, looped.plan.distinct_layers, f"L+O(1): L+2 with L={theta.plan.depth}"),
        Size("loops", case.m, looped.plan.depth // looped.plan.distinct_layers),
        Size(
            "embedding size d",
            theta.d + 3 * s,
            looped.d,
            "d+3s is claimed; it is 2d+2|V|+3s+1, since θ_PE(i), token and logits are kept beside x",
        ),
        Size("embedding size, without a counter", None, uncounted.d, "2d+2|V|+2s+1"),
        Size("attention heads", None, looped.n_heads, "constantly many more: max(H, 2)"),
        Size("head width d_attn", None, looped.d_attn, attn),
        Size("hidden width d_ff", None, looped.d_ff, ff),
    )


def _notes(additions: list[Case], randoms: list[Case]) -> tuple[str, ...]:
    gaps = [min(case.gap for case in cases) for cases in (additions, randoms)]
    slack = thresholds(addition_case(bits=3))
    return (
        f"gap of the top two logits: {gaps[0]:.3g} in addition, {gaps[1]:.2g} in random transformers; δ is half of it",
        f"on addition of 3 bits β ≥ {slack.beta:.2f}, B ≥ {slack.gate:.2f} and δ ≤ {slack.gap:.2f} gaps are enough",
        "the counter can be left out: with a mask of 1 wherever a # was, in every loop, the tokens are the same",
        "the answer is read from the one-hot token; x holds θ_TE(v)+θ_PE(i), from which θ_OUTPUT cannot read v",
    )


def _traces(case: Case, a: int, b: int) -> tuple[Trace, Trace]:
    """Returns the two halves of Figure 4 for a + b: one more token per step; all at once, corrected by each loop."""
    at = slice(a * 2**case.m + b, a * 2**case.m + b + 1)
    prompt, chain = case.prompts[at], _words(case.tokens[at])
    looped = build_looped(case.theta, case.n, case.m, case.constants).model()
    steps = [("input", (*_words(prompt), *[""] * case.m))]
    loops = [("input", (*_words(prompt), *["#"] * case.m))]
    for t, state in enumerate(looped_states(looped, prompt), start=1):
        settled, guesses = case.n + t, _words(read_out(looped, state))
        steps.append((f"step {t}", (*chain[:settled], *[""] * (case.m - t))))
        loops.append((f"loop {t}", (*guesses[:settled], *(f"({guess})" for guess in guesses[settled:]))))
    positions = tuple(str(i) for i in range(1, case.n + case.m + 1))
    left = f"Chain of thought, {a} + {b}: every step runs the whole transformer and appends a token"
    right = f"{a} + {b}, looped: loop t settles position {case.n}+t; in brackets what later loops write over"
    return Trace(left, positions, tuple(steps)), Trace(right, positions, tuple(loops))


def _words(tokens: Tensor) -> tuple[str, ...]:
    return tuple(ADDITION_WORDS[token] for token in tokens[0].tolist())
