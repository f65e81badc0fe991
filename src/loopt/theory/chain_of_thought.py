"""Theorem 5.4: a looped transformer simulates chain of thought, one token a loop.

θ is a transformer of L layers that reads n tokens v and then generates m more, each from all before it. The looped one
gets the input (v, #^m) and runs L+2 layers m times. Loop t turns the # at position n+t into the token that θ generates
in its t-th step, so that after m loops the tokens are all there:

>>> adder = build_addition(bits=3)
>>> prompts, sums = all_additions(bits=3)
>>> looped = build_looped(adder, n=prompts.shape[1], m=3)
>>> str(looped.plan), torch.equal(run_looped(looped.model(), prompts)[:, -3:], sums)
('3x3', True)

What position i holds when loop t begins, and who writes it:

    x         d    θ_TE(v_i) + θ_PE(i), what θ itself would hold   layers 1 to L, then the second head of layer L+1
    position  d    θ_PE(i), which x loses on its way
    token    |V|   v_i as a one-hot vector, all 0 for #            layer L+2
    score    |V|   0; within the loop the logits of position i-1   layer L+1
    i, f     s, s  i and f(i) = [i-2]_+ + 1 in binary, ±1
    count     s    n+t-1 in binary, ±1                             layer L+2
    M         1    0; within the loop the mask 1[i ≥ n+t]          layer L+1

i, f and count are the paper's p_i, of width 3s with s = ⌊log2(n+m)⌋ + 1. Positions are counted from 1, bits from the
least significant one. All numbers are real ones in float64; the paper's lemmas about F_s become groups of units that
name them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from loopt.errors import InputError
from loopt.model import LoopedTransformer
from loopt.plan import Block, LoopPlan
from loopt.theory.examples import ADDITION_WORDS, all_additions, build_addition, random_transformer
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, Space, zeros
from loopt.theory.gates import signed_binary
from loopt.theory.proof import Check, Proof, Size, Trace
from loopt.theory.thresholds import bisect


@dataclass(frozen=True)
class Constants:
    """Every number of the construction that is not a size. The first three have slack, see ``thresholds``; the others
    are structure: with one of them 0 or negative the tokens are wrong, or, with increment = 0, only the counter is."""

    beta: float = 20.0
    """β: a code that differs in one bit scores 2β less in the two heads of layer L+1."""
    gate: float = 2.0
    """B of the control gate, no less than what it shuts off; those are numbers up to 1 here."""
    gap: float = 1.0
    """δ: how far θ's best logit is above its second, at least. 1/δ is the slope that turns distances into 0 or 1."""
    shift: float = 1.0
    """Logits of the previous position, taken over."""
    reset: float = 1.0
    """x at the end of θ's layers, taken away; and x at their beginning, put back."""
    distance: float = 1.0
    """Σ_b relu(y_b - y_a), the distance of token a from the best."""
    forget_logits: float = 1.0
    forget_distances: float = 1.0
    forget_mask: float = 1.0
    compare: float = 1.0
    """i - count, of which the mask is made."""
    write: float = 1.0
    """The new token, put in the token's place."""
    drop: float = 1.0
    """The old token, taken away."""
    embed: float = 1.0
    """θ_TE of what changes about the token, added to x."""
    increment: float = 1.0
    """What changes in the counter's bits."""


# Chain of thought itself, and as a loop


@torch.no_grad()
def chain_of_thought(model: LoopedTransformer, prompts: Tensor, m: int) -> Tensor:
    """TF^1 … TF^m: m times run the whole model and append its likeliest next token, [B, n] -> [B, n+m]. Seen as a loop
    (the paper's Figure 4, left), each iteration changes one token, and all before it stay."""
    tokens = prompts
    for _ in range(m):
        tokens = torch.cat((tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)), dim=1)
    return tokens


@torch.no_grad()
def smallest_gap(model: LoopedTransformer, tokens: Tensor, n: int) -> float:
    """The smallest distance of the best logit from the second, over all steps of these chains of thought."""
    best = model(tokens)[:, n - 1 : -1].topk(2).values  # [B, m, 2]: position n+t-1 decides about token n+t
    return float((best[..., 0] - best[..., 1]).min())


def with_dummies(prompts: Tensor, m: int, dummy: int) -> Tensor:
    """(v, #^m)"""
    return torch.cat((prompts, torch.full((len(prompts), m), dummy)), dim=1)


# The looped transformer


def bits_for(n: int, m: int) -> int:
    """s, enough bits for every position: ⌊log2(n+m)⌋ + 1."""
    return (n + m).bit_length()


def build_masked(theta: FormalTransformer, n: int, m: int, constants: Constants | None = None) -> FormalTransformer:
    """The first half of the proof: L+2 layers that want the mask M^t from outside, see ``masked_states``."""
    return _Build(theta, n, m, constants or Constants(), "outside").transformer()


def build_looped(theta: FormalTransformer, n: int, m: int, constants: Constants | None = None) -> FormalTransformer:
    """The whole: L+2 layers that count their loops and make the mask themselves, an ordinary looped transformer."""
    return _Build(theta, n, m, constants or Constants(), "counter").transformer()


def build_uncounted(theta: FormalTransformer, n: int, m: int, constants: Constants | None = None) -> FormalTransformer:
    """What the proof could do without: here the mask is 1 wherever a # was, in every loop, and nothing counts. A token
    that is right already is made again from the same tokens before it, so it stays. No weight depends on n: the same
    ones serve every input of length n' with m' dummies where n'+m' ≤ n+m, looped m' times or more."""
    return _Build(theta, n, m, constants or Constants(), "dummy").transformer()


MaskBy = Literal["outside", "counter", "dummy"]
"""Who makes the mask: the caller; a counter and a comparison, as in the paper; the embedding of #."""


def coordinates(theta: FormalTransformer, n: int, m: int, mask_by: MaskBy) -> Space:
    """What a position holds, as listed above; without the mask's part where that comes from outside."""
    d, V, s = theta.d, len(theta.tokens), bits_for(n, m)
    of_mask = {"outside": {}, "counter": {"count": s, "M": 1}, "dummy": {"M": 1}}[mask_by]
    return Space(x=d, position=d, token=V, score=V, i=s, f=s, **of_mask)


class _Build:
    def __init__(self, theta: FormalTransformer, n: int, m: int, constants: Constants, mask_by: MaskBy) -> None:
        for name, value in (("n", n), ("m", m)):
            if value < 1:
                raise InputError(f"{name}={value}: allowed is 1 or more")
        if n + m > len(theta.positions):
            raise InputError(f"n+m={n + m}: allowed is up to {len(theta.positions)}, the positions that θ knows")
        self.theta, self.n, self.m, self.constants, self.mask_by = theta, n, m, constants, mask_by
        self.V, self.s = len(theta.tokens), bits_for(n, m)
        self.space = coordinates(theta, n, m, mask_by)

    def transformer(self) -> FormalTransformer:
        layers = [self.widened(self.theta.layers[step.layer]) for step in self.theta.plan.steps]
        layers += [self.previous_logits_and_distances(), self.next_token()]
        return FormalTransformer(
            plan=LoopPlan((Block(len(layers), self.m),)),
            tokens=self.tokens(),
            positions=self.positions(),
            layers=tuple(layers),
            output=torch.cat((self.space.read("token"), zeros(1, self.space.size))),  # x itself is the wrong place
        )

    def tokens(self) -> Tensor:
        """A row for each token of V, and one for #, the last, which is zeros but for the mask."""
        dummy = self.space.read("M") if self.mask_by == "dummy" else zeros(1, self.space.size)
        return torch.cat((self.theta.tokens @ self.space.read("x") + self.space.read("token"), dummy))

    def positions(self) -> Tensor:
        i = torch.arange(1, self.n + self.m + 1)
        codes = {"i": i, "f": (i - 2).clamp(min=0) + 1}
        if self.mask_by == "counter":
            codes["count"] = torch.full_like(i, self.n)
        rows = self.theta.positions[: len(i)] @ (self.space.read("x") + self.space.read("position"))
        for name, number in codes.items():
            rows += signed_binary(number, self.s) @ self.space.read(name)
        return rows

    def widened(self, layer: FormalLayer) -> FormalLayer:
        """A layer of θ, which sees x and nothing else."""
        x = self.space.read("x")  # [d, size]
        heads = tuple(Head(h.query @ x, h.key @ x, h.value @ x, h.output @ x) for h in layer.heads)
        return FormalLayer(heads, W1=layer.W1 @ x, b1=layer.b1, W2=x.T @ layer.W2, b2=layer.b2 @ x)

    def previous_logits_and_distances(self) -> FormalLayer:
        """Layer L+1: each position fetches the logits y of the one before it and turns each into the token's distance
        from the best, Σ_b relu(y_b - y_a): the first half of the argmax lemma."""
        c, read, unit = self.constants, self.space.read, self.space.unit
        score = read("score")
        shift = Head(  # the shift lemma: position i looks at f(i)
            query=c.beta * read("f"), key=read("i"), value=c.shift * self.theta.output @ read("x"), output=score
        )
        embedding = self.theta.tokens.T @ read("token") + read("position")  # [d, size]
        reset = Head(  # position i looks at itself
            query=c.beta * read("i"), key=read("i"), value=c.reset * (embedding - read("x")), output=read("x")
        )
        units = _Units(self.space.size)
        for a in range(self.V):
            for b in range(self.V):
                if a != b:
                    units.add(score[b] - score[a], 0.0, c.distance * score[a])
            units.add(score[a], 0.0, -c.forget_logits * score[a])
            units.add(-score[a], 0.0, c.forget_logits * score[a])
        if self.mask_by == "counter":
            # the comparison lemma: 1[i > count] = relu(i-count) - relu(i-count-1), since both are whole numbers
            powers = 0.5 * 2.0 ** torch.arange(self.s, dtype=torch.float64)
            ahead = c.compare * powers @ (read("i") - read("count"))
            units.add(ahead, 0.0, unit("M"))
            units.add(ahead, -1.0, -unit("M"))
        return units.layer((shift, reset))

    def next_token(self) -> FormalLayer:
        """Layer L+2: where the mask is 1, the token at distance 0 takes the place of the old one."""
        c, read, unit = self.constants, self.space.read, self.space.unit
        score, token = read("score"), read("token")
        open_gate, gate_bias = zeros(self.space.size), 0.0
        if self.mask_by != "outside":
            # the control gate lemma: -B·(1-M) shuts off what should not happen where M = 0
            open_gate, gate_bias = c.gate * unit("M"), -c.gate
        units = _Units(self.space.size)
        for a in range(self.V):
            becomes_a = token[a] + c.embed * self.theta.tokens[a] @ read("x")  # the embedding lemma
            units.add(-score[a] / c.gap + open_gate, 1.0 + gate_bias, c.write * becomes_a)  # argmax, second half
            units.add(token[a] + open_gate, gate_bias, -c.drop * becomes_a)
            units.add(score[a], 0.0, -c.forget_distances * score[a])
        b2 = zeros(self.space.size)
        if self.mask_by == "counter":
            units.add(unit("M"), 0.0, -c.forget_mask * unit("M"))
            count = read("count")
            b2 += 2 * c.increment * count[0]  # the increment lemma: bit j flips where all below it are 1
            for j in range(1, self.s):
                carry = 0.5 * count[:j].sum(0), 1.0 - 0.5 * j  # their conjunction: 1 if all j of them are +1, else ≤ 0
                units.add(*carry, 2 * c.increment * (count[j] - 2 * count[j - 1]))
        return units.layer(heads=(), b2=b2)


class _Units:
    """Hidden units of a feed-forward: each adds relu(⟨reads, x⟩ + bias) times ``writes`` to x."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reads: list[Tensor] = []
        self.biases: list[float] = []
        self.writes: list[Tensor] = []

    def add(self, reads: Tensor, bias: float, writes: Tensor) -> None:
        self.reads.append(reads)
        self.biases.append(bias)
        self.writes.append(writes)

    def layer(self, heads: tuple[Head, ...], b2: Tensor | None = None) -> FormalLayer:
        b1 = torch.tensor(self.biases, dtype=torch.float64)
        b2 = zeros(self.size) if b2 is None else b2
        return FormalLayer(heads, torch.stack(self.reads), b1, torch.stack(self.writes, dim=1), b2)


# Running it


def mask(length: int, n: int, t: int) -> Tensor:
    """M^t(i) = 1[i - t ≥ n] for i = 1 … length: what loop t may change.

    >>> mask(length=6, n=3, t=2).int().tolist()
    [0, 0, 0, 0, 1, 1]
    """
    return torch.arange(1, length + 1) - t >= n


@torch.no_grad()
def masked_states(model: LoopedTransformer, prompts: Tensor) -> list[Tensor]:
    """The looped transformer with mask, [TF_M(x)]_i = (1-M(i))·x_i + M(i)·[TF(x)]_i: the state after every loop."""
    n, m = prompts.shape[1], len(model.config.plan.passes)
    x, states = model.embed(with_dummies(prompts, m, _dummy(model))), []
    for t in range(1, m + 1):
        x = torch.where(mask(n + m, n, t)[:, None], model.iterate(x, loops=1), x)  # [n+m, 1] against [B, n+m, D]
        states.append(x)
    return states


@torch.no_grad()
def looped_states(model: LoopedTransformer, prompts: Tensor) -> list[Tensor]:
    """The ordinary looped transformer: the state after every loop."""
    return list(model.walk(model.embed(with_dummies(prompts, len(model.config.plan.passes), _dummy(model)))))


def run_masked(model: LoopedTransformer, prompts: Tensor) -> Tensor:
    """The tokens of all positions after the last loop, [B, n] -> [B, n+m]."""
    return _read_out(model, masked_states(model, prompts)[-1])


def run_looped(model: LoopedTransformer, prompts: Tensor) -> Tensor:
    """The tokens of all positions after the last loop, [B, n] -> [B, n+m]."""
    return _read_out(model, looped_states(model, prompts)[-1])


def _dummy(model: LoopedTransformer) -> int:
    return model.config.vocab_size - 1


@torch.no_grad()
def _read_out(model: LoopedTransformer, state: Tensor) -> Tensor:
    return model.readout(state).argmax(-1)


def all_prompts(vocabulary: int, n: int) -> Tensor:
    """Every input of n tokens, [vocabulary^n, n]."""
    return torch.cartesian_prod(*[torch.arange(vocabulary)] * n).view(-1, n)


# How much slack there is


@dataclass(frozen=True, eq=False)
class Case:
    """A transformer that thinks in m tokens, and inputs for it."""

    name: str
    theta: FormalTransformer
    prompts: Tensor  # [B, n]
    m: int

    @property
    def n(self) -> int:
        return self.prompts.shape[1]

    @cached_property
    def tokens(self) -> Tensor:
        """The inputs with θ's own chains of thought, [B, n+m]: what is to be reached."""
        model = self.theta.model()
        return torch.cat([chain_of_thought(model, prompts, self.m) for prompts in self.prompts.split(CHUNK)])

    @cached_property
    def gap(self) -> float:
        model = self.theta.model()
        return min(smallest_gap(model, tokens, self.n) for tokens in self.tokens.split(CHUNK))

    @property
    def constants(self) -> Constants:
        """Half the gap as δ, so that rounding cannot matter."""
        return Constants(gap=self.gap / 2)


CHUNK = 64
"""Inputs that are run together; more of them take longer, since memory has to be found for them."""


def addition_case(bits: int) -> Case:
    return Case(f"addition of {bits} bits", build_addition(bits), all_additions(bits)[0], bits)


def random_case(seed: int, L: int, vocabulary: int, n: int, m: int) -> Case:
    theta = random_transformer(range(L), seed, d=12, d_ff=16, vocabulary=vocabulary, n_max=n + m)
    return Case(f"random L={L}", theta, all_prompts(vocabulary, n), m)


@dataclass(frozen=True)
class Thresholds:
    """Beyond these some token is wrong."""

    beta: float
    """The smallest β."""
    gate: float
    """The smallest B."""
    gap: float
    """The largest δ, in gaps of θ."""


def thresholds(case: Case) -> Thresholds:
    """By bisection, one constant at a time, the others as they are.

    One gap is always small enough for δ, and 1 large enough for B; on random transformers with their many close calls
    it has to be 1, and β is between 3 and 5. Addition forgives more:

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


# The proof

TOLERANCE = 1e-9
RANDOM_SHAPES = ((1, 3, 5, 6), (2, 6, 3, 9), (3, 4, 4, 8), (6, 5, 3, 12))
"""L, |V|, n and m."""

Builder = Callable[[FormalTransformer, int, int, Constants], FormalTransformer]
Runner = Callable[[LoopedTransformer, Tensor], Tensor]


@torch.no_grad()
def drift(theta: FormalTransformer, looped: LoopedTransformer, prompts: Tensor, tokens: Tensor) -> Tensor:
    """How far from what the proof says is what ``looped`` holds, the most over loops and positions: [B], one per input.

    After loop t, positions 1 to n+t hold what the embedding gives for θ's own ``tokens``, with a counter of n+t."""
    n, m = prompts.shape[1], tokens.shape[1] - prompts.shape[1]
    count, expected = coordinates(theta, n, m, "counter")["count"], looped.embed(tokens)  # [B, n+m, D]
    worst = []
    for t, state in enumerate(looped_states(looped, prompts), start=1):
        expected[..., count] = signed_binary(torch.tensor(n + t), bits_for(n, m))
        worst.append((state - expected)[:, : n + t].abs().amax((1, 2)))
    return torch.stack(worst).amax(0)


def prove(bits: int = 6, seed: int = 0, show: bool = False) -> Proof:
    """Addition of 1 to ``bits`` bits and four random transformers, each on all of its inputs."""
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
        name="cot",
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
            "d+3s is claimed, 2d+2|V|+3s+1 it is: θ_PE(i), token and logits are kept besides x",
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
        "the counter can be left out: with the mask 1 wherever a # was, in every loop, the tokens are the same",
        "the answer is read from the token's place; x holds θ_TE(v)+θ_PE(i), not what θ_OUTPUT reads v from",
    )


def _traces(case: Case, a: int, b: int) -> tuple[Trace, Trace]:
    """The two halves of Figure 4 for a + b: one token more in every step, and all at once, corrected by every loop."""
    at = slice(a * 2**case.m + b, a * 2**case.m + b + 1)
    prompt, chain = case.prompts[at], _words(case.tokens[at])
    looped = build_looped(case.theta, case.n, case.m, case.constants).model()
    steps = [("input", (*_words(prompt), *[""] * case.m))]
    loops = [("input", (*_words(prompt), *["#"] * case.m))]
    for t, state in enumerate(looped_states(looped, prompt), start=1):
        settled, guesses = case.n + t, _words(_read_out(looped, state))
        steps.append((f"step {t}", (*chain[:settled], *[""] * (case.m - t))))
        loops.append((f"loop {t}", (*guesses[:settled], *(f"({guess})" for guess in guesses[settled:]))))
    positions = tuple(str(i) for i in range(1, case.n + case.m + 1))
    left = f"Chain of thought, {a} + {b}: every step runs the whole transformer and appends a token"
    right = f"{a} + {b}, looped: loop t settles position {case.n}+t; in brackets what later loops write over"
    return Trace(left, positions, tuple(steps)), Trace(right, positions, tuple(loops))


def _words(tokens: Tensor) -> tuple[str, ...]:
    return tuple(ADDITION_WORDS[token] for token in tokens[0].tolist())
