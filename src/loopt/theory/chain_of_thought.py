"""Theorem 5.4: a looped transformer simulates chain of thought, one token per loop.

θ is a transformer of L layers that reads n tokens v and generates m more, each from all before it. The looped one gets
the input (v, #^m) and runs L+2 layers m times. Loop t turns the # at position n+t into the token that θ generates in
step t:

>>> from loopt.theory.examples import all_additions, build_addition
>>> adder = build_addition(bits=3)
>>> prompts, sums = all_additions(bits=3)
>>> looped = build_looped(adder, n=prompts.shape[1], m=3)
>>> str(looped.plan), torch.equal(run_looped(looped.model(), prompts, m=3)[:, -3:], sums)
('3x3', True)

The residual stream of position i when loop t begins, and what writes it:

    one       1    1
    x         d    θ_TE(v_i) + θ_PE(i), as in θ itself             layers 1 to L; emptied by L+1, made anew by L+2
    position  d    θ_PE(i), apart from x, which θ's layers change
    token    |V|   v_i one-hot, all 0 for #                        layer L+2
    score    |V|   0; within the loop the logits of position i-1   layer L+1
    distance |V|   0; within the loop how far each is from the best   layer L+1
    i, f     s, s  i and f(i) = [i-2]_+ + 1 in binary, ±1
    count     s    n+t-1 in binary, ±1                             layer L+2
    M         1    0; within the loop the mask 1[i ≥ n+t]          layer L+1

i, f and count are the paper's p_i, of width 3s with s = ⌊log2(n+m)⌋ + 1. Positions are counted from 1, bits from the
least significant one. The paper's lemmas become groups of hidden units, with a comment that names the lemma.

The same weights, but for two constants, are right over the reals and in plain F_s. In F_s every number of θ comes out
the same, for any θ whose best logit is always alone, and any prompt: no sum that matters saturates or is rounded. The
checks are in ``chain_of_thought_proof``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from loopt.errors import InputError, require
from loopt.model import LoopedTransformer
from loopt.plan import Block, LoopPlan
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, HiddenUnits, Space, zeros
from loopt.theory.gates import signed_binary
from loopt.theory.lemmas import interleaved
from loopt.theory.precision import FixedPoint, forward

MaskBy = Literal["outside", "counter", "dummy"]
"""What makes the mask: the caller; a counter and a comparison, as in the paper; the embedding of #."""


@dataclass(frozen=True)
class Constants:
    """The numbers of the construction. The first two have slack, measured by ``chain_of_thought_proof.thresholds``.
    With another 0 or negated the tokens are wrong; only increment = 0 leaves them right and the counter wrong."""

    beta: float = 20.0
    """β. A code that differs in one bit scores 2β less in the heads of layers L+1 and L+2."""
    gap: float = 1.0
    """δ, at most the gap of θ's top two logits. Distances are in units of it, so all but that of the best are 1 or
    more."""
    shift: float = 1.0
    """The factor on the logits fetched from the previous position."""
    empty: float = 1.0
    """The factor on x that is taken away after θ's layers."""
    place: float = 1.0
    """The factor on θ_PE(i), which is put in its place."""
    distance: float = 1.0
    """The factor on Σ_b relu(y_b - y_a), the distance of token a from the best."""
    forget_logits: float = 1.0
    forget_distances: float = 1.0
    forget_mask: float = 1.0
    compare: float = 1.0
    """The factor on i - count, from which the mask is made."""
    write: float = 1.0
    """The factor on the new token."""
    drop: float = 1.0
    """The factor on the old token, which is taken away."""
    embed: float = 1.0
    """The factor on θ_TE of the new token in x."""
    keep: float = 1.0
    """The factor on θ_TE of a token that stays."""
    increment: float = 1.0
    """The factor on the change of the counter's bits."""

    @classmethod
    def of(cls, s: int) -> Constants:
        """Returns the constants for F_s. Numbers of F_s that differ do so by 2^-s or more, and B_s times that is 1."""
        F = FixedPoint(s)
        return cls(beta=F.largest, gap=1.0, distance=F.largest)


@torch.no_grad()
def chain_of_thought(model: LoopedTransformer, prompts: Tensor, m: int) -> Tensor:
    """Runs the model m times and appends its likeliest next token each time, the paper's TF^1 … TF^m: [B, n] ->
    [B, n+m]."""
    tokens = prompts
    for _ in range(m):
        tokens = torch.cat((tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)), dim=1)
    return tokens


def chain_of_thought_in_precision(theta: FormalTransformer, prompts: Tensor, m: int, s: int) -> Tensor:
    """Returns the same in F_s, where the likeliest token is the one with the largest logit: [B, n] -> [B, n+m]. A row
    in which some best logit is not alone is -1, which no model says."""
    tokens, alone = prompts, torch.ones(len(prompts), dtype=torch.bool)
    for _ in range(m):
        logits = forward(theta, tokens, s)[:, -1]  # [B, V]
        alone &= (logits == logits.amax(-1, keepdim=True)).sum(-1) == 1
        tokens = torch.cat((tokens, logits.argmax(-1, keepdim=True)), dim=1)
    return torch.where(alone[:, None], tokens, -1)


def run_in_precision(looped: FormalTransformer, prompts: Tensor, m: int, s: int | None) -> Tensor:
    """Returns the tokens of all positions after the last loop, in F_s or float64: [B, n] -> [B, n+m]."""
    return forward(looped, with_dummies(prompts, m, len(looped.tokens) - 1), s).argmax(-1)


def with_dummies(prompts: Tensor, m: int, dummy: int) -> Tensor:
    """Returns the input (v, #^m)."""
    return torch.cat((prompts, torch.full((len(prompts), m), dummy)), dim=1)


def bits_for(n: int, m: int) -> int:
    """Returns s = ⌊log2(n+m)⌋ + 1, the bits of a position."""
    return (n + m).bit_length()


def build_masked(theta: FormalTransformer, n: int, m: int, constants: Constants | None = None) -> FormalTransformer:
    """Builds L+2 layers that get the mask M^t from outside, the first half of the proof; ``run_masked`` runs them."""
    return _Build(theta, n, m, constants or Constants(), "outside").transformer()


def build_looped(theta: FormalTransformer, n: int, m: int, constants: Constants | None = None) -> FormalTransformer:
    """Builds the theorem's looped transformer: L+2 layers that count their loops and make the mask themselves."""
    return _Build(theta, n, m, constants or Constants(), "counter").transformer()


def build_uncounted(theta: FormalTransformer, n: int, m: int, constants: Constants | None = None) -> FormalTransformer:
    """Builds the looped transformer without a counter: the mask is 1 wherever a # was, in every loop.

    A token that is right is made again from the same tokens before it, so it stays. No weight depends on n: the same
    ones serve every input of n' tokens and m' dummies with n'+m' ≤ n+m, looped m' times or more."""
    return _Build(theta, n, m, constants or Constants(), "dummy").transformer()


def coordinates(theta: FormalTransformer, n: int, m: int, mask_by: MaskBy) -> Space:
    """Returns the coordinates listed above, less those of the mask that ``mask_by`` does not need."""
    d, V, s = theta.d, len(theta.tokens), bits_for(n, m)
    of_mask = {"outside": {}, "counter": {"count": s, "M": 1}, "dummy": {"M": 1}}[mask_by]
    return Space(one=1, x=d, position=d, token=V, score=V, distance=V, i=s, f=s, **of_mask)


class _Build:
    def __init__(self, theta: FormalTransformer, n: int, m: int, constants: Constants, mask_by: MaskBy) -> None:
        known = len(theta.positions)
        require(n >= 1, "n", n, "1 or more", InputError)
        require(m >= 1, "m", m, "1 or more", InputError)
        require(n + m <= known, "n+m", n + m, f"up to {known}, the positions that θ knows", InputError)
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
            output=torch.cat((self.space.read("token"), zeros(1, self.space.size))),  # θ_OUTPUT cannot read v from x
        )

    def tokens(self) -> Tensor:
        """Returns a row for each token of V and a last one for #, which is 0 except for the mask."""
        dummy = self.space.read("M") if self.mask_by == "dummy" else zeros(1, self.space.size)
        return torch.cat((self.theta.tokens @ self.space.read("x") + self.space.read("token"), dummy))

    def positions(self) -> Tensor:
        i = torch.arange(1, self.n + self.m + 1)
        codes = {"i": i, "f": (i - 2).clamp(min=0) + 1}
        if self.mask_by == "counter":
            codes["count"] = torch.full_like(i, self.n)
        rows = self.theta.positions[: len(i)] @ (self.space.read("x") + self.space.read("position"))
        rows += self.space.unit("one")
        for name, number in codes.items():
            rows += signed_binary(number, self.s) @ self.space.read(name)
        return rows

    def widened(self, layer: FormalLayer) -> FormalLayer:
        """Returns a layer of θ that reads and writes x alone."""
        x = self.space.read("x")  # [d, size]
        heads = tuple(Head(h.query @ x, h.key @ x, h.value @ x, h.output @ x) for h in layer.heads)
        return FormalLayer(heads, W1=layer.W1 @ x, b1=layer.b1, W2=x.T @ layer.W2, b2=layer.b2 @ x)

    def look_at(self, target: str, value: Tensor, output: Tensor) -> Head:
        """Builds the head by which position i fetches ``value`` from the position whose number is ``target`` (E.3)."""
        one, read = self.space.unit("one"), self.space.read
        key = self.constants.beta * interleaved(read("i"), -one)
        return Head(interleaved(read(target), one), key, value, output)

    def previous_logits_and_distances(self) -> FormalLayer:
        """Builds layer L+1: each position fetches the logits y of the one before it (the shift lemma) and makes of each
        the token's distance from the best, Σ_b relu(y_b - y_a), the first half of the argmax lemma. It empties x."""
        c, read, unit = self.constants, self.space.read, self.space.unit
        score, distance = read("score"), read("distance")
        shift = self.look_at("f", c.shift * self.theta.output @ read("x"), score)
        units = HiddenUnits()
        for a in range(self.V):
            for b in range(self.V):
                if a != b:
                    units.add(score[b] - score[a], 0.0, c.distance / c.gap * distance[a])
        for sign in (1, -1):
            for old, factor in ((score, c.forget_logits), (read("x"), c.empty)):
                for coordinate in old:
                    units.add(sign * coordinate, 0.0, -sign * factor * coordinate)
        if self.mask_by == "counter":
            # the comparison lemma: 1[i > count] = relu(i-count) - relu(i-count-1), since both are integers
            powers = 0.5 * 2.0 ** torch.arange(self.s, dtype=torch.float64)
            ahead = c.compare * powers @ (read("i") - read("count"))
            units.add(ahead, 0.0, unit("M"))
            units.add(ahead, -1.0, -unit("M"))
        return units.layer((shift,))

    def next_token(self) -> FormalLayer:
        """Builds layer L+2: where the mask is 1, the token at distance 0 replaces the old one. x is embedded anew."""
        c, read, unit = self.constants, self.space.read, self.space.unit
        distance, token, one = read("distance"), read("token"), unit("one")
        M = one if self.mask_by == "outside" else unit("M")
        units = HiddenUnits()
        for a in range(self.V):
            embedding = self.theta.tokens[a] @ read("x")  # the embedding lemma
            # argmax, second half, and the control gate: all numbers are 0, 1 or more, so M and 1-M are gates of size 1
            units.add(M - distance[a], 0.0, c.write * token[a] + c.embed * embedding)
            units.add(token[a] + M - one, 0.0, -c.drop * token[a])
            units.add(token[a] - M, 0.0, c.keep * embedding)
            units.add(distance[a], 0.0, -c.forget_distances * distance[a])
        b2 = zeros(self.space.size)
        if self.mask_by == "counter":
            units.add(unit("M"), 0.0, -c.forget_mask * unit("M"))
            count = read("count")
            b2 += 2 * c.increment * count[0]  # the increment lemma: bit j flips where all lower bits are 1
            for j in range(1, self.s):
                carry = 0.5 * count[:j].sum(0), 1.0 - 0.5 * j  # their AND: 1 if all j are +1, else ≤ 0
                units.add(*carry, 2 * c.increment * (count[j] - 2 * count[j - 1]))
        return units.layer((self.look_at("i", c.place * read("position"), read("x")),), b2=b2)


def mask(length: int, n: int, t: int) -> Tensor:
    """Returns M^t(i) = 1[i - t ≥ n] for i = 1 … length, which is 1 where loop t may change a position.

    >>> mask(length=6, n=3, t=2).int().tolist()
    [0, 0, 0, 0, 1, 1]
    """
    return torch.arange(1, length + 1) - t >= n


@torch.no_grad()
def masked_states(model: LoopedTransformer, prompts: Tensor, m: int) -> list[Tensor]:
    """Returns the state after every loop with a mask from outside: [TF_M(x)]_i = (1-M(i))·x_i + M(i)·[TF(x)]_i."""
    n = prompts.shape[1]
    x, states = model.embed(with_dummies(prompts, m, _dummy(model))), []
    for t in range(1, len(model.config.plan.passes) + 1):
        x = torch.where(mask(n + m, n, t)[:, None], model.iterate(x, loops=1), x)  # [n+m, 1] against [B, n+m, D]
        states.append(x)
    return states


@torch.no_grad()
def looped_states(model: LoopedTransformer, prompts: Tensor, m: int) -> list[Tensor]:
    """Returns the state after every loop of a transformer that makes its mask itself."""
    return list(model.walk(model.embed(with_dummies(prompts, m, _dummy(model)))))


def run_masked(model: LoopedTransformer, prompts: Tensor, m: int) -> Tensor:
    """Returns the tokens of all positions after the last loop, with a mask from outside: [B, n] -> [B, n+m]."""
    return read_out(model, masked_states(model, prompts, m)[-1])


def run_looped(model: LoopedTransformer, prompts: Tensor, m: int) -> Tensor:
    """Returns the tokens of all positions after the last loop: [B, n] -> [B, n+m]."""
    return read_out(model, looped_states(model, prompts, m)[-1])


def _dummy(model: LoopedTransformer) -> int:
    return model.config.vocab_size - 1


@torch.no_grad()
def read_out(model: LoopedTransformer, state: Tensor) -> Tensor:
    return model.readout(state).argmax(-1)
