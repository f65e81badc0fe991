"""Whatever a certificate passes with one number of the weights changed is right on all inputs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from loopt.tasks.group import GroupComposition
from loopt.tasks.groups import group
from loopt.tasks.phop import PHop
from loopt.theory import chain_of_thought as cot
from loopt.theory import (
    chain_of_thought_certificate,
    group_composition_proof,
    phop,
    phop_certificate,
    phop_counting,
    simulation_proof,
)
from loopt.theory import group_composition as composing
from loopt.theory.chain_of_thought_cases import Case
from loopt.theory.controls import change_heads, change_layer
from loopt.theory.examples import all_words, random_transformer, rounded
from loopt.theory.formal import FormalLayer, FormalTransformer, Head, Space
from loopt.theory.phop import answers, build_phop
from loopt.theory.phop_counting import build_counting, precision_of
from loopt.theory.precision import FixedPoint, forward
from loopt.theory.proof import Tally
from loopt.theory.simulation import Bounds, differences, simulate

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Built:
    formal: FormalTransformer
    certify: Callable[[FormalTransformer], Tally]
    right: Callable[[FormalTransformer], bool]
    """Runs all inputs."""
    each: int
    """How many changes of each matrix are tried."""


def of_group(s: int | None) -> Built:
    z3, n = group("Z3"), 5
    words = all_words(3, n)
    solve = GroupComposition(group="Z3", n=n).solve
    wanted = torch.tensor([solve(word)[-1] for word in words.tolist()])

    def right(formal: FormalTransformer) -> bool:
        if s is None:
            return torch.equal(composing.answers(formal.model(), z3, words), wanted)
        return torch.equal(composing.answers_in_precision(formal, z3, words, s), wanted)

    formal = composing.build_group_composition(z3, n) if s is None else composing.build_in_precision(z3, n, s)
    return Built(formal, lambda one: group_composition_proof.certify(one, z3, n, s), right, each=40)


def of_simulation(s: int | None) -> Built:
    small = random_transformer((0, 1), seed=1, heads=1, d=3, d_ff=3, vocabulary=2, n_max=3)
    theta = small if s is None else rounded(small, s)
    bounds = Bounds.from_weights(theta) if s is None else Bounds.largest(s)
    words = all_words(2, 3)

    def right(formal: FormalTransformer) -> bool:
        if s is None:
            return bool(differences(theta, formal, words).max() < 1e-9)
        return not simulation_proof.differ_in_precision(theta, formal, words, s).any()

    certify = simulation_proof.certify
    return Built(simulate(theta, bounds), lambda one: certify(theta, one, bounds, s), right, each=40)


def of_phop(p: int, n: int, alphabet: int, s: int | None) -> Built:
    words = all_words(alphabet, n)
    solve = PHop(p=(p,), n=n, alphabet=alphabet, sampler="uniform", supervision="every").solve
    wanted = torch.tensor([solve(word) for word in words.tolist()])
    if s is None:
        return Built(
            build_phop(p, n, alphabet),
            lambda one: phop_certificate.certify(one, p, n, alphabet),
            lambda one: torch.equal(answers(one.model(), words), wanted),
            each=12,
        )
    return Built(
        build_counting(p, n, s, alphabet),
        lambda one: phop_certificate.certify_counting(one, p, n, s, alphabet),
        lambda one: torch.equal(forward(one, words, s).argmax(-1), wanted),
        each=8,
    )


def of_chain(s: int | None) -> Built:
    n, m = 2, 2
    small = random_transformer((0,), seed=1, heads=1, d=3, d_ff=3, vocabulary=3, n_max=n + m)
    case = Case(small, all_words(3, n), m)
    theta = small if s is None else rounded(small, s)
    lead = case.gap if s is None else FixedPoint(s).step
    wanted = case.tokens if s is None else cot.chain_of_thought_in_precision(theta, case.prompts, m, s)
    alone = wanted[:, 0] >= 0

    def right(formal: FormalTransformer) -> bool:
        return torch.equal(cot.run_in_precision(formal, case.prompts, m, s)[alone], wanted[alone])

    built = cot.build_looped(theta, n, m, case.constants if s is None else cot.Constants.of(s))
    certify = chain_of_thought_certificate.certify
    return Built(built, lambda one: certify(theta, one, n, m, lead, s), right, each=16)


CASES: dict[str, Callable[[], Built]] = {
    "5.1": lambda: of_group(None),
    "5.1 in F_2": lambda: of_group(2),
    "5.2": lambda: of_simulation(None),
    "5.2 in F_6": lambda: of_simulation(6),
    "5.3": lambda: of_phop(3, 5, 2, None),
    "5.3 of one hop": lambda: of_phop(1, 4, 3, None),
    "5.3 in F_s": lambda: of_phop(3, 4, 2, precision_of(3, 4)),
    "5.4": lambda: of_chain(None),
    "5.4 in F_4": lambda: of_chain(4),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_certificate_passes_with_one_number_changed_is_right(name: str) -> None:
    built = CASES[name]()
    assert built.certify(built.formal).wrong == 0
    assert built.right(built.formal)
    changes = passed = 0
    for what, damaged in changed(built.formal, built.each):
        changes += 1
        if built.certify(damaged).wrong == 0:
            passed += 1
            assert built.right(damaged), what
    assert changes > 200
    assert passed < changes / 3


def changed(formal: FormalTransformer, each: int) -> Iterator[tuple[str, FormalTransformer]]:
    """Yields the transformer with one number of a matrix changed, by turns of all matrices."""
    draw = random.Random(0)

    def other(weights: Tensor) -> Tensor:
        weights = weights.clone().contiguous()
        index = draw.randrange(weights.numel())
        old = weights.flatten()[index].item()
        weights.view(-1)[index] = draw.choice(sorted({0.0, -old, 2 * old, old / 2, old + 1, old - 1, old - 3} - {old}))
        return weights

    def part(index: int, **parts: Any) -> FormalTransformer:
        return change_layer(formal, index, lambda layer: replace(layer, **parts))

    def of_head(layer: FormalLayer, h: int, **parts: Tensor) -> dict[str, Any]:
        return {"heads": (*layer.heads[:h], replace(layer.heads[h], **parts), *layer.heads[h + 1 :])}

    for _ in range(each):
        for name in ("tokens", "positions", "output"):
            whole: dict[str, Any] = {name: other(getattr(formal, name))}
            yield name, replace(formal, **whole)
        for i, layer in enumerate(formal.layers):
            for name in ("W1", "b1", "W2", "b2"):
                yield f"layer {i}: {name}", part(i, **{name: other(getattr(layer, name))})
            for h, head in enumerate(layer.heads):
                for name in ("query", "key", "value", "output"):
                    weights = {name: other(getattr(head, name))}
                    yield f"layer {i}, head {h}: {name}", part(i, **of_head(layer, h, **weights))


def reading(space: Space, part: str, row: int, name: str, value: float = 1.0) -> Callable[[Head], Head]:
    """Returns the damage that has a row of a head's query or key read the first coordinate of that name."""

    def damage(head: Head) -> Head:
        weights = getattr(head, part).clone()
        weights[row, space[name].start] += value
        parts: dict[str, Any] = {part: weights}
        return replace(head, **parts)

    return damage


@pytest.mark.parametrize("counting", [False, True], ids=["reals", "F_s"])
@pytest.mark.parametrize("name", ["square", "letter", "previous", "near", "found_far", "found_near", "found_answer"])
def test_an_output_layer_that_reads_more_than_the_answer_is_noticed(name: str, counting: bool) -> None:
    built, space, _ = of_three_hops(counting)
    output = built.formal.output.clone()
    output[0, space["place" if counting and name == "square" else name].start] += 2.0**-6
    assert built.certify(replace(built.formal, output=output)).where.startswith("the output layer reads")


HEADS = {
    "following: its query reads the place": (2, "query", "place"),
    "following: its query reads turn": (2, "query", "turn"),
    "following: its key reads far": (2, "key", "far"),
    "following: its key reads the answer": (2, "key", "answer"),
    "the match: its key reads the own letter": (1, "key", "letter"),
    "the match: its query reads the place": (1, "query", "place"),
}


@pytest.mark.parametrize("counting", [False, True], ids=["reals", "F_s"])
@pytest.mark.parametrize("what", HEADS)
def test_a_head_of_p_hop_that_reads_more_than_it_should_is_noticed(what: str, counting: bool) -> None:
    built, space, place = of_three_hops(counting)
    index, part, name = HEADS[what]
    damage = reading(space, part, 0, place if name == "place" else name, 2.0**-7)
    damaged = change_layer(built.formal, index + counting, lambda layer: change_heads(layer, damage))
    assert re.search(f"its {part} reads .* alone", built.certify(damaged).where)


@pytest.mark.parametrize("part", ["query", "key"])
def test_a_head_that_counts_and_reads_the_own_letter_or_a_count_is_noticed(part: str) -> None:
    built, space, _ = of_three_hops(True)
    damage = reading(space, part, 0, "matches_here")
    damaged = change_layer(built.formal, 1, lambda layer: change_heads(layer, damage))
    assert built.certify(damaged).where.startswith(f"layer 2, matches_before: its {part} reads")


def test_a_hidden_unit_that_reads_a_count_is_noticed() -> None:
    built, space, _ = of_three_hops(True)
    W1 = built.formal.layers[2].W1.clone()
    W1[0, space["matches_before"].start] = 0.25
    damaged = change_layer(built.formal, 2, lambda layer: replace(layer, W1=W1))
    assert "hidden units that read counts" in built.certify(damaged).where


def of_three_hops(counting: bool) -> tuple[Built, Space, str]:
    """What is built for 3 hops, its coordinates, and which of them hold the position."""
    built = of_phop(3, 5, 3, precision_of(3, 5) if counting else None)
    return (built, phop_counting.coordinates(3), "place") if counting else (built, phop.coordinates(3), "position")


@pytest.mark.parametrize("unit", [0, 1])
def test_a_pointer_that_is_not_taken_away_is_noticed(unit: int) -> None:
    """With no unit that reads it, no group of variables that units read together has it."""
    built, space, _ = of_three_hops(False)
    W1 = built.formal.layers[2].W1.clone()
    assert W1[:2, [space["found_far"].start, space["far"].start]].tolist() == [[1, 0], [0, 1]]
    W1[unit] = 0.0
    damaged = change_layer(built.formal, 2, lambda layer: replace(layer, W1=W1))
    assert built.certify(damaged).where.startswith("replacing pointers, ")


@pytest.mark.parametrize("s", [None, 2])
@pytest.mark.parametrize("room", ["left_element", "right_element"])
def test_a_position_that_holds_something_in_the_rooms_for_elements_is_noticed(room: str, s: int | None) -> None:
    built, space = of_group(s), composing.residual_space(group("Z3"), 5)
    positions = built.formal.positions.clone()
    positions[4, space[room].start] -= 0.5
    tally = built.certify(replace(built.formal, positions=positions))
    assert "the rooms for two elements, by position: case 4" in tally.where


def test_switches_leave_room_for_what_later_layers_make_of_a_share_of_hash() -> None:
    """B is 40 above the largest score and more: the logarithm of the factor by which layers multiply a difference."""
    theta = random_transformer((0, 1, 0, 1), seed=1, heads=1, d=3, d_ff=3, vocabulary=2, n_max=3)
    bounds = Bounds.from_weights(theta)
    words = all_words(2, 3)
    score = Bounds.measured(theta, words, factor=1.0).scores
    assert bounds.scores > score
    assert Bounds.from_weights(replace(theta, output=1e9 * theta.output)).scores > bounds.scores + 15
    lower = replace(bounds, scores=bounds.scores - 1)
    assert simulation_proof.certify(theta, simulate(theta, lower), bounds).where.startswith("head 0: # is hidden")
