"""The certificate of Theorem 5.4 says NO to whatever is damaged, but for what computes the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from loopt.theory.chain_of_thought import (
    Constants,
    build_looped,
    chain_of_thought_in_precision,
    coordinates,
    run_in_precision,
)
from loopt.theory.chain_of_thought_cases import Case
from loopt.theory.chain_of_thought_certificate import certify
from loopt.theory.controls import change_layer, weight_groups
from loopt.theory.examples import all_words, random_transformer, rounded
from loopt.theory.formal import FormalLayer, FormalTransformer

N, M, S = 2, 3, 4
THETA = random_transformer((0, 1), seed=1, heads=1, d=4, d_ff=4, vocabulary=3, n_max=N + M)
CASE = Case(THETA, all_words(3, N), M)
IN_F = rounded(THETA, S)

pytestmark = pytest.mark.slow


def setting(s: int | None) -> tuple[FormalTransformer, FormalTransformer, float]:
    """θ, what is built of it, and by how much its best logit leads."""
    if s is None:
        return THETA, build_looped(THETA, N, M, CASE.constants), CASE.gap
    return IN_F, build_looped(IN_F, N, M, Constants.of(s)), 2.0**-s


both = pytest.mark.parametrize("s", [None, S])


@both
def test_each_weight_group_zeroed_or_negated_is_noticed(s: int | None) -> None:
    theta, built, lead = setting(s)
    assert certify(theta, built, N, M, lead, s).wrong == 0
    for name, change in weight_groups(built).items():
        for factor in (0.0, -1.0):
            tally = certify(theta, change(factor), N, M, lead, s)
            assert tally.wrong > 0, (name, factor)
            assert tally.where


def single_changes(built: FormalTransformer, s: int | None, every: int) -> Iterator[FormalTransformer]:
    """The transformer with one number changed, for some of all numbers that follow θ's layers, and of the rest."""
    draw = torch.Generator().manual_seed(0)

    def changed(weights: Tensor) -> Iterator[Tensor]:
        for index in torch.randperm(weights.numel(), generator=draw)[:: every if weights.numel() > 40 else 1].tolist():
            old = weights.flatten()[index].item()
            for new in (0.0, -old, 2 * old, old / 2) if old else (1.0, -1.0):
                if s is None or abs(new) < 2**s:
                    other = weights.clone()
                    other.view(-1)[index] = new
                    yield other

    for name in ("tokens", "positions", "output"):
        for other in changed(getattr(built, name)):
            whole: dict[str, Any] = {name: other}
            yield replace(built, **whole)
    for place in (-2, -1):
        layer = built.layers[place]
        for name in ("W1", "b1", "W2", "b2"):
            for other in changed(getattr(layer, name)):
                yield with_parts(built, place, **{name: other})
        (head,) = layer.heads
        for name in ("query", "key", "value", "output"):
            for other in changed(getattr(head, name)):
                yield with_parts(built, place, heads=(replace(head, **{name: other}),))


def with_parts(built: FormalTransformer, place: int, **parts: Any) -> FormalTransformer:
    return change_layer(built, place, lambda layer: replace(layer, **parts))


@both
def test_what_the_certificate_passes_is_right_for_all_prompts(s: int | None) -> None:
    """Many a number can be changed without damage: a key may be larger, and so may the weight of a distance."""
    theta, built, lead = setting(s)
    prompts = CASE.prompts
    wanted = CASE.tokens if s is None else chain_of_thought_in_precision(theta, prompts, M, s)
    alone = wanted[:, 0] >= 0
    assert alone.sum() > 4
    changes = passed = 0
    for damaged in single_changes(built, s, every=20):
        changes += 1
        if certify(theta, damaged, N, M, lead, s).wrong == 0:
            passed += 1
            assert torch.equal(run_in_precision(damaged, prompts, M, s)[alone], wanted[alone])
    assert changes > 500
    assert passed < changes / 4


@both
def test_fewer_or_more_loops_and_a_smaller_lead_are_noticed(s: int | None) -> None:
    theta, built, lead = setting(s)
    for loops in (M - 1, M + 1):
        (block,) = built.plan.blocks
        other = replace(built, plan=replace(built.plan, blocks=(replace(block, loops=loops),)))
        assert certify(theta, other, N, M, lead, s).where == f"{loops} loops, should be {M}"
    too_small = lead / 8
    assert certify(theta, built, N, M, too_small, s).where.startswith("layer L+1: a token that is not the best")


SPACE = coordinates(THETA, N, M, "counter")
HIDDEN_UNITS: dict[str, tuple[int, dict[str, float], float, str]] = {
    "a distance over 3": (-1, {"distance 0": 1.0}, -3.0, "token 1"),
    "a distance over 3 with M": (-1, {"distance 0": 1.0, "M 0": 2.0}, -5.0, "token 1"),
    "two tokens at once": (-1, {"token 0": 1.0, "token 1": 1.0}, -1.0, "x 0"),
    "a token and a distance": (-1, {"token 0": 1.0, "distance 0": -1.0}, -1.0, "x 0"),
    "a token of 1/2": (-1, {"token 0": 1.0, "M 0": 1.0}, -1.5, "one 0"),
    "x": (-1, {"x 0": 1.0}, -9.0, "token 0"),
    "a high logit": (-2, {"score 0": 1.0}, -9.0, "M 0"),
    "a pair twice": (-2, {"score 0": 1.0, "score 1": -1.0}, 0.0, "distance 2"),
    "three logits": (-2, {"score 0": 1.0, "score 1": -1.0, "score 2": -1.0}, 0.0, "distance 2"),
    "a logit and the counter": (-2, {"score 0": 1.0, "count 0": 1.0}, -9.0, "distance 2"),
    "a logit of any sign": (-2, {"score 0": 2.0}, 0.0, "x 0"),
}
"""A unit more, by what it reacts to: its layer, what it reads, its bias, and where it adds 1."""


@both
@pytest.mark.parametrize("what", HIDDEN_UNITS)
def test_a_hidden_unit_more_is_noticed_whatever_it_waits_for(what: str, s: int | None) -> None:
    theta, built, lead = setting(s)
    place, reads, bias, written = HIDDEN_UNITS[what]

    def unit(coordinate: str) -> Tensor:
        name, index = coordinate.split()
        return SPACE.read(name)[int(index)]

    row = sum((weight * unit(name) for name, weight in reads.items()), torch.zeros(SPACE.size))

    more = with_units(row[None].double(), torch.tensor([bias]).double(), unit(written)[:, None])
    assert certify(theta, change_layer(built, place, more), N, M, lead, s).wrong > 0


def with_units(W1: Tensor, b1: Tensor, W2: Tensor) -> Callable[[FormalLayer], FormalLayer]:
    return lambda layer: replace(
        layer, W1=torch.cat([layer.W1, W1]), b1=torch.cat([layer.b1, b1]), W2=torch.cat([layer.W2, W2], dim=1)
    )


@both
def test_units_that_cancel_are_noticed(s: int | None) -> None:
    """Over the reals they do nothing; in F_s a sum may saturate between them."""
    theta, built, lead = setting(s)
    distance, x = (SPACE.read(name)[0] for name in ("distance", "x"))
    two = with_units(distance.repeat(2, 1), torch.zeros(2).double(), torch.stack([9 * x, -9 * x], dim=1))
    assert "nothing cancels" in certify(theta, change_layer(built, -1, two), N, M, lead, s).where


@both
@pytest.mark.parametrize("place", [-2, -1])
def test_each_hidden_unit_taken_away_negated_or_there_twice_is_noticed(place: int, s: int | None) -> None:
    theta, built, lead = setting(s)
    layer = built.layers[place]
    units = len(layer.b1)
    for unit in range(units):
        others = torch.arange(units) != unit
        fewer = with_parts(built, place, W1=layer.W1[others], b1=layer.b1[others], W2=layer.W2[:, others])
        silent, negated = (
            with_parts(built, place, W2=torch.where(others, 1.0, sign) * layer.W2) for sign in (0.0, -1.0)
        )
        twice = change_layer(built, place, with_units(*parts_of(layer, unit)))
        for damaged in (fewer, silent, negated, twice):
            assert certify(theta, damaged, N, M, lead, s).wrong > 0, unit


def parts_of(layer: FormalLayer, unit: int) -> tuple[Tensor, Tensor, Tensor]:
    return layer.W1[unit, None], layer.b1[unit, None], layer.W2[:, unit, None]


@both
def test_a_logit_that_counts_double_in_a_comparison_is_noticed(s: int | None) -> None:
    theta, built, lead = setting(s)
    layer = built.layers[-2]
    pairs = ((layer.W1[:, SPACE["score"]] != 0).sum(1) == 2).nonzero().flatten()
    assert len(pairs) == 6
    for unit in pairs.tolist():
        for token in range(3):
            W1 = layer.W1.clone()
            W1[unit, SPACE["score"].start + token] = 2 * W1[unit, SPACE["score"].start + token] or 1.0
            assert certify(theta, with_parts(built, -2, W1=W1), N, M, lead, s).wrong > 0


@both
@pytest.mark.parametrize("place", [-2, -1])
@pytest.mark.parametrize("part", ["query", "key"])
def test_attention_that_sees_tokens_is_noticed(place: int, part: str, s: int | None) -> None:
    """On positions alone it looks where it should."""
    theta, built, lead = setting(s)
    (head,) = built.layers[place].heads
    weights = getattr(head, part).clone()
    weights[0, SPACE["token"].start] = 9.0
    damaged = with_parts(built, place, heads=(replace(head, **{part: weights}),))
    assert "reads what changes" in certify(theta, damaged, N, M, lead, s).where


def test_halves_that_round_to_nothing_are_noticed_in_precision() -> None:
    """Two units that each take away half a distance are right over the reals; in F_s half of 2^-s is 0."""
    distance = SPACE.read("distance")[0]

    def halved(layer: FormalLayer) -> FormalLayer:
        (unit,) = ((distance == layer.W1).all(1)).nonzero().flatten()
        W2 = layer.W2.clone()
        W2[:, unit] /= 2
        half = replace(layer, W2=W2)
        return with_units(*parts_of(half, int(unit)))(half)

    for s, noticed in ((None, False), (S, True)):
        theta, built, lead = setting(s)
        assert (certify(theta, change_layer(built, -1, halved), N, M, lead, s).wrong > 0) == noticed
