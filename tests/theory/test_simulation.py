"""Theorem 5.2: the looped layer answers as the transformer that it simulates, and needs every part of itself for it."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.errors import InputError
from loopt.runs import AdamWConfig, Run, TrainConfig
from loopt.tasks import PHop
from loopt.tasks.groups import group
from loopt.theory import simulation_proof
from loopt.theory.controls import control, weight_groups
from loopt.theory.examples import all_words, composition_by_prefixes, random_transformer, rounded
from loopt.theory.formal import FormalTransformer
from loopt.theory.group_composition import build_group_composition
from loopt.theory.simulation import (
    AS_PRINTED,
    LIFTED,
    SOFTMAX_MARGIN,
    TOLERANCE,
    Bounds,
    Constants,
    differences,
    distinct_layers,
    simulate,
    with_start,
)
from loopt.training import Session, train

pytestmark = pytest.mark.slow

EXAMPLE = random_transformer(order=(0, 1, 2, 1, 1, 0, 2), seed=0)


def some_inputs(formal: FormalTransformer, count: int = 8, length: int | None = None, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    words, n = formal.tokens.shape[0], length or formal.positions.shape[0]
    return torch.randint(words, (count, n), generator=generator)


def off_by(formal: FormalTransformer, looped: FormalTransformer, inputs: Tensor | None = None) -> float:
    return differences(formal, looped, some_inputs(formal) if inputs is None else inputs).max().item()


def measured(formal: FormalTransformer) -> Bounds:
    return Bounds.measured(formal, some_inputs(formal))


@st.composite
def orders(draw: st.DrawFn) -> list[int]:
    """r(0) … r(L-1), in which each of R layers occurs."""
    R = draw(st.integers(1, 5))
    rest = draw(st.lists(st.integers(0, R - 1), max_size=24 - R))
    return draw(st.permutations([*range(R), *rest]))


@given(
    order=orders(),
    seed=st.integers(0, 2**32),
    widths=st.fixed_dictionaries({name: st.integers(1, 7) for name in ("d", "d_qk", "d_v", "d_ff", "vocabulary")}),
    heads=st.integers(1, 3),
    n=st.integers(1, 9),
    length=st.integers(1, 9),
)
@settings(max_examples=30, deadline=None)
def test_any_transformer_is_simulated(
    order: list[int], seed: int, widths: dict[str, int], heads: int, n: int, length: int
) -> None:
    formal = random_transformer(order, seed, heads=heads, n_max=n, **widths)
    inputs = some_inputs(formal, count=4, length=min(n, length), seed=seed)
    R, L = max(order) + 1, len(order)
    for_these, for_all = Bounds.measured(formal, inputs, factor=1.0), Bounds.from_weights(formal)
    for field in fields(Bounds):
        rounding = 1 + 1e-12  # with one coordinate the bound is reached
        assert getattr(for_these, field.name) <= getattr(for_all, field.name) * rounding
    for bounds in (for_these, for_all):
        looped = simulate(formal, bounds)
        assert off_by(formal, looped, inputs) <= TOLERANCE
    assert (str(looped.plan), looped.plan.depth, len(looped.layers)) == (f"1x{L}", L, 1)
    assert looped.d == formal.d + R + 2
    assert looped.n_heads == R * heads
    assert (looped.d_qk, looped.d_v) == (formal.d_qk + 3, formal.d_v)
    assert R * formal.d_ff < looped.d_ff <= R * formal.d_ff + R + L
    assert looped.tokens.shape[0] == formal.tokens.shape[0] + 1


@pytest.mark.parametrize("plan", ["1x6", "3x2", "1x(1,4,1)", "2x1+1x3"])
def test_repeats_may_be_in_the_plan_or_be_equal_layers(plan: str) -> None:
    parsed = LoopPlan.parse(plan)
    looped = replace(random_transformer(range(parsed.distinct_layers), seed=3), plan=parsed)
    unrolled = replace(looped, plan=parsed.iso_flop, layers=tuple(looped.layers[step.layer] for step in parsed.steps))
    for formal in (looped, unrolled):
        layers, order = distinct_layers(formal)
        assert len(layers) == parsed.distinct_layers
        assert order == tuple(step.layer for step in parsed.steps)
        assert off_by(formal, simulate(formal, measured(formal))) <= TOLERANCE


def test_units_of_the_schedule_that_would_add_nothing_are_left_out() -> None:
    order = (0, 1, *[2] * 20)
    formal = random_transformer(order, seed=0)
    looped = simulate(formal, measured(formal))
    assert looped.d_ff == 3 * formal.d_ff + 3 + 4  # three for output biases, four for the schedule
    assert off_by(formal, looped) <= TOLERANCE


@pytest.mark.parametrize("factor", [0.0, -1.0])
@pytest.mark.parametrize("field", [field.name for field in fields(Constants) if field.name != "lift"])  # that is 0
def test_every_constant_counts(field: str, factor: float) -> None:
    constants = replace(Constants(), **{field: factor * getattr(Constants(), field)})
    assert off_by(EXAMPLE, simulate(EXAMPLE, measured(EXAMPLE), constants)) > 1e-3


@pytest.mark.parametrize("factor", [0.0, -1.0])
@pytest.mark.parametrize("weights", ["W1", "W2"])  # biases are weights of the flags
def test_the_feed_forward_counts(weights: str, factor: float) -> None:
    looped = simulate(EXAMPLE, measured(EXAMPLE))
    (layer,) = looped.layers
    changed = replace(layer, **{weights: factor * getattr(layer, weights)})
    assert off_by(EXAMPLE, replace(looped, layers=(changed,))) > 1e-3


@pytest.mark.parametrize("factor", [0.0, -1.0])
@pytest.mark.parametrize(
    ("weights", "row", "columns"),
    [
        ("tokens", slice(None, -1), slice(EXAMPLE.d)),
        ("tokens", slice(None, -1), slice(EXAMPLE.d, EXAMPLE.d + 3)),  # the first turn's flag
        ("tokens", slice(-1, None), slice(None)),  # of `#`
        ("positions", slice(None), slice(None)),
        ("output", slice(None, -1), slice(None)),
        ("output", slice(-1, None), slice(None)),  # of `#`
    ],
)
def test_embeddings_and_output_count(weights: str, row: slice, columns: slice, factor: float) -> None:
    looped = simulate(EXAMPLE, measured(EXAMPLE))
    changed = getattr(looped, weights).clone()
    changed[row, columns] *= factor
    assert off_by(EXAMPLE, replace(looped, **{weights: changed})) > 1e-3


@pytest.mark.parametrize("factor", [0.0, -1.0])
@pytest.mark.parametrize("part", ["query", "key", "value", "output"])
@pytest.mark.parametrize("h", range(6))
def test_every_head_counts(h: int, part: str, factor: float) -> None:
    looped = simulate(EXAMPLE, measured(EXAMPLE))
    (layer,) = looped.layers
    heads = list(layer.heads)
    heads[h] = replace(heads[h], **{part: factor * getattr(heads[h], part)})
    assert off_by(EXAMPLE, replace(looped, layers=(replace(layer, heads=tuple(heads)),))) > 1e-3


def test_the_switch_as_printed_is_the_wrong_way_round() -> None:
    assert off_by(EXAMPLE, simulate(EXAMPLE, measured(EXAMPLE), AS_PRINTED)) > 0.5


def test_thresholds() -> None:
    inputs = some_inputs(EXAMPLE)
    needed, largest = simulation_proof.smallest_bounds(EXAMPLE, inputs), Bounds.measured(EXAMPLE, inputs, factor=1.0)
    ample = Bounds.measured(EXAMPLE, inputs)
    for field in fields(Bounds):
        threshold = getattr(needed, field.name)
        assert threshold <= 1.001 * getattr(largest, field.name)  # what is measured is enough
        for value, holds in ((1.001 * threshold, True), (0.99 * threshold, False)):
            looped = simulate(EXAMPLE, replace(ample, **{field.name: value}))
            assert (off_by(EXAMPLE, looped, inputs) <= TOLERANCE) is holds, (field.name, value)


def test_bounds_have_to_hold_for_layers_that_are_not_at_work() -> None:
    """The proof takes B from the scores of the layer whose turn it is. Here layer 0 moves x far out, where its head,
    idle by then, has large scores; layer 1 has none at all."""
    small = random_transformer(order=(0, 1), seed=0, heads=1)
    first, second = small.layers
    head = replace(first.heads[0], key=first.heads[0].query)
    far_out = replace(first, heads=(head,), b2=first.b2 + 30)
    no_scores = replace(second, heads=(replace(second.heads[0], query=0 * second.heads[0].query),))
    formal = replace(small, layers=(far_out, no_scores))
    inputs = some_inputs(formal)
    x = formal.model().embed(inputs)
    of_its_turn = ((x @ head.query.T) @ (x @ head.key.T).mT).tril().abs().max().item()
    bounds = Bounds.measured(formal, inputs)
    assert off_by(formal, simulate(formal, bounds)) <= TOLERANCE
    assert off_by(formal, simulate(formal, replace(bounds, scores=of_its_turn + SOFTMAX_MARGIN))) > 1e-3


def test_larger_bounds_cost_no_precision() -> None:
    off = [off_by(EXAMPLE, simulate(EXAMPLE, Bounds(size, size, size))) for size in (1e3, 1e8, 1e100, 1e300)]
    assert max(off) <= 1e-13
    assert len(set(off)) == 1


def test_bounds_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(InputError, match=r"bounds\.scores=inf: allowed is a finite number"):
        simulate(EXAMPLE, Bounds(math.inf, 1.0, 1.0))
    with pytest.raises(InputError, match=r"bounds\.logits=-1"):
        simulate(EXAMPLE, Bounds(1.0, 1.0, -1.0))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoopedTransformer, PHop]:
    task = PHop(p=(1,), n=8, alphabet=3, supervision="every")
    config = TrainConfig(
        source=task,
        model=ModelConfig(
            plan=LoopPlan.parse("2x2+1x1"),
            d_model=16,
            n_heads=2,
            d_ff=32,
            positions="learned",
            norm_placement="none",
            feed_forward="relu",
            biases="feed_forward",
        ),
        optim=AdamWConfig(lr=0.01, warmup_steps=10),
        steps=100,
        batch_size=32,
        log_every=50,
        eval_every=100,
        eval_examples=64,
        test_examples=64,
    )
    directory: Path = tmp_path_factory.mktemp("runs") / "trained"
    train(config, directory, Session(device="cpu", progress=False))
    return Run.load(directory).load_model("last"), task


def test_a_trained_transformer_is_simulated(trained: tuple[LoopedTransformer, PHop]) -> None:
    model, task = trained
    formal = FormalTransformer.of(model)
    inputs = task.sample(range(64), seed=1, split="test").tokens
    looped = simulate(formal, Bounds.measured(formal, inputs[:16]))
    assert (str(looped.plan), looped.d, looped.n_heads) == ("1x5", 16 + 3 + 2, 6)
    assert off_by(formal, looped, inputs) <= TOLERANCE
    with torch.no_grad():  # and is the model that was trained, in float32
        of_run = model(inputs).softmax(-1)
        of_looped = looped.model()(with_start(formal, inputs))[:, 1:, :-1].softmax(-1)
    torch.testing.assert_close(of_looped.float(), of_run, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("name", "n"), [("Z2", 5), ("S3", 16), ("A5", 7)])
def test_group_composition_in_log_depth_is_simulated(name: str, n: int) -> None:
    G = group(name)
    formal = composition_by_prefixes(G, n)
    layers, order = distinct_layers(formal)
    assert len(layers) == len(order) == math.ceil(math.log2(n))
    words = torch.randint(G.order, (8, n), generator=torch.Generator().manual_seed(0))
    inputs = torch.cat([torch.full((8, 1), G.order), words], dim=1)  # its own #, which is e
    prefixes = torch.tensor([[G.product(*word[:i]) for i in range(1, n + 1)] for word in words.tolist()])
    looped = simulate(formal, Bounds.measured(formal, inputs))
    assert off_by(formal, looped, inputs) <= TOLERANCE
    with torch.no_grad():
        assert torch.equal(formal.model()(inputs)[:, 1:].argmax(-1), prefixes)
        assert torch.equal(looped.model()(with_start(formal, inputs))[:, 2:].argmax(-1), prefixes)


def test_a_looped_transformer_is_simulated_from_its_unrolled_copy() -> None:
    looped = build_group_composition(group("S3"), 8)
    depth = looped.plan.depth
    unrolled = replace(looped, plan=looped.plan.iso_flop, layers=looped.layers * depth)
    again = simulate(unrolled, Bounds.measured(unrolled, some_inputs(unrolled)))
    assert (depth, again.d, again.n_heads) == (3, looped.d + 1 + 2, 2)
    assert again.d_ff == looped.d_ff + 3  # an output bias, and the counter: the one layer is always on
    assert off_by(unrolled, again) <= TOLERANCE


def test_proof() -> None:
    proof = simulation_proof.prove(seed=1, inputs=4, show=True)
    assert proof.exact
    assert max(check.worst or 0 for check in proof.checks) <= TOLERANCE
    for size in proof.sizes:
        assert size.as_claimed or ("attention width" in size.name and size.actual - (size.claimed or 0) <= 3)
    assert all(model(torch.tensor([[0, 1]])).shape[1] == 2 for model in proof.models.values())
    (trace,) = proof.traces
    turns = [cells[1].split(",")[0] for _, cells in trace.rows]
    assert turns == [f"layer {r}" for r in (0, 1, 2, 1, 1, 0, 0)]
    assert all(cells[0] == "|x|=0e+00" for _, cells in trace.rows)  # `#` stands still


def test_a_proof_needs_inputs() -> None:
    with pytest.raises(InputError, match="inputs=0: allowed is 1 or more"):
        simulation_proof.prove(inputs=0)


@given(order=orders(), seed=st.integers(0, 2**32), s=st.sampled_from([6, 8, 12]), n=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_any_transformer_is_simulated_in_plain_fixed_point(order: list[int], seed: int, s: int, n: int) -> None:
    formal = rounded(random_transformer(order[:6], seed, d=3, d_ff=4, vocabulary=3, n_max=n), s)
    looped = simulate(formal, Bounds.largest(s))
    assert simulation_proof.certify(formal, looped, Bounds.largest(s), s).wrong == 0
    words = all_words(3, n)
    assert not simulation_proof.differ_in_precision(formal, looped, words, s).any()


def test_a_schedule_needs_room() -> None:
    """Flags and counter are sums of up to L terms of up to L: too few bits are noticed."""
    for s, right in ((3, False), (4, True)):
        formal = rounded(random_transformer((0, 1, 2, 3), 0), s)
        tally = simulation_proof.certify(formal, simulate(formal, Bounds.largest(s)), Bounds.largest(s), s)
        assert (tally.wrong == 0) is right
        assert right or "flags and counter" in tally.where


def test_a_lifted_switch_fails_in_plain_fixed_point() -> None:
    formal = rounded(random_transformer((0, 1, 0), 0, vocabulary=3, n_max=4), 8)
    lifted = simulate(formal, Bounds.largest(8), LIFTED)
    assert simulation_proof.differ_in_precision(formal, lifted, all_words(3, 4)).sum() > 100
    assert simulation_proof.certify(formal, lifted, Bounds.largest(8), 8).wrong


@pytest.mark.parametrize("factor", [0.0, -1.0])
@pytest.mark.parametrize("s", [None, 8])
def test_each_weight_group_counts_in_the_certificate(s: int | None, factor: float) -> None:
    formal = EXAMPLE if s is None else rounded(EXAMPLE, s)
    bounds = Bounds.from_weights(formal) if s is None else Bounds.largest(s)
    looped = simulate(formal, bounds)
    assert simulation_proof.certify(formal, looped, bounds, s).wrong == 0
    for name, multiplied in weight_groups(looped).items():
        assert simulation_proof.certify(formal, multiplied(factor), bounds, s).wrong, name


@pytest.mark.parametrize("name", simulation_proof.BREAKS)
def test_what_is_broken_is_noticed(name: str) -> None:
    change = control(simulation_proof.BREAKS, 0, name)
    proof = simulation_proof.prove(inputs=2, control=change, own=EXAMPLE)
    over_the_reals, _, in_precision = proof.checks
    assert over_the_reals.wrong
    assert over_the_reals.where
    assert in_precision.wrong
    assert in_precision.where
