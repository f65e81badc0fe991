"""Transformers that think in tokens, with inputs for them, to try Theorem 5.4 on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from loopt.model import LoopedTransformer
from loopt.tasks.groups import group
from loopt.theory.chain_of_thought import Constants, chain_of_thought, mask, with_dummies
from loopt.theory.examples import (
    all_additions,
    all_words,
    build_addition,
    build_composing_chain,
    random_transformer,
)
from loopt.theory.formal import FormalTransformer

CHUNK = 64
"""How many inputs run together; larger chunks are slower to allocate."""


@dataclass(frozen=True, eq=False)
class Case:
    """A transformer that thinks in m tokens, and inputs for it."""

    theta: FormalTransformer
    prompts: Tensor  # [B, n]
    m: int
    which: str = "every"
    """Whether the inputs are "every" one that there is, or "sampled"."""

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


def addition_case(bits: int) -> Case:
    return Case(build_addition(bits), all_additions(bits)[0], bits)


def random_case(seed: int, L: int, vocabulary: int, n: int, m: int) -> Case:
    """Returns the first random transformer, from ``seed`` on, that has a last token which is not there one loop early,
    so that a missing loop is noticed."""
    while True:
        theta = random_transformer(range(L), seed, d=12, d_ff=16, vocabulary=vocabulary, n_max=n + m)
        prompts = all_words(vocabulary, n)
        *_, early, last = guesses(theta, prompts, m)
        if not torch.equal(early, last):
            return Case(theta, prompts, m)
        seed += 1000


@torch.no_grad()
def guesses(theta: FormalTransformer, prompts: Tensor, m: int) -> list[Tensor]:
    """Returns the tokens [B, n+m] before the first loop and after each, by the proof's idea and θ alone: what is past
    the input becomes, in every loop, what θ generates from the guesses before it. At first it is |V|, for #."""
    n, V, none = prompts.shape[1], len(theta.tokens), torch.zeros_like(theta.tokens[:1])
    model = replace(theta, tokens=torch.cat([theta.tokens, none]), output=torch.cat([theta.output, none])).model()
    found = [with_dummies(prompts, m, V)]
    for t in range(1, m + 1):
        generated = model(found[-1])[:, :-1, :V].argmax(-1)
        found.append(torch.where(mask(n + m, n, t), functional.pad(generated, (1, 0)), found[-1]))
    return found


def composing_case(name: str, n: int, words: int, seed: int) -> Case:
    """Returns the transformer that composes n elements of a group word by word, with ``words`` random words."""
    G = group(name)
    drawn = torch.randint(G.order, (words, n), generator=torch.Generator().manual_seed(seed))
    prompts = torch.cat([drawn, torch.full((words, 1), G.order)], dim=1)
    return Case(build_composing_chain(G, n), prompts, n, "sampled")


def small_case(seed: int, L: int, V: int, n: int, m: int) -> Case:
    return Case(random_transformer(range(L), seed, d=6, d_ff=8, vocabulary=V, n_max=n + m), all_words(V, n), m)
