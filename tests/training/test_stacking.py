from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch.optim import Optimizer

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.errors import ConfigError
from loopt.plan import Block
from loopt.runs.optimizers import OPTIMIZERS
from loopt.runs.stacking import StackingConfig
from loopt.training.optim import build_optimizers, load_optimizer_tensors, optimizer_tensors
from loopt.training.stacking import grow, source_layers
from tiny_runs import layers_of

TINY = ModelConfig(LoopPlan.parse("2x1"), d_model=8, n_heads=2, d_ff=12, vocab_size=7, max_len=5)


def model_of(layers: int, seed: int = 0) -> LoopedTransformer:
    torch.manual_seed(seed)
    return LoopedTransformer(replace(TINY, plan=LoopPlan((Block(layers, 1),))))


def train(model: LoopedTransformer, optimizers: list[Optimizer], steps: int) -> float:
    loss = math.nan
    for step in range(steps):
        tokens = torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(step))
        model.zero_grad()
        result = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        result.backward()
        loss = result.item()
        for optimizer in optimizers:
            optimizer.step()
    return loss


@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 8))
def test_growing_copies_whole_blocks_from_the_middle(block: int, blocks: int, more: int) -> None:
    sources = source_layers(block * blocks, block * (blocks + more), block)
    assert len(sources) == block * (blocks + more)
    for first in range(0, len(sources), block):  # blocks stay whole, at a block's place
        assert sources[first] % block == 0
        assert sources[first : first + block] == list(range(sources[first], sources[first] + block))
    assert [layer // block for layer in sources] == sorted(layer // block for layer in sources)  # and in order
    assert set(sources) == set(range(block * blocks))  # none is lost
    if more:  # the first growth is that of block ⌈n/2⌉
        middle = math.ceil(blocks / 2) - 1
        once = source_layers(block * blocks, block * (blocks + 1), block)
        assert [once.count(block * b) for b in range(blocks)] == [1 + (b == middle) for b in range(blocks)]
    if blocks >= 3 or (blocks == 2 and not more):
        assert sources.count(0) == sources.count(block * (blocks - 1)) == 1  # both ends stay single


@given(st.integers(1, 4), st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_growing_in_stages_is_growing_at_once(block: int, increases: list[int]) -> None:
    sizes = [block * blocks for blocks in itertools.accumulate(increases)]
    sources = list(range(sizes[0]))
    for before, after in itertools.pairwise(sizes):
        sources = [sources[layer] for layer in source_layers(before, after, block)]
    assert sources == source_layers(sizes[0], sizes[-1], block)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 8, 2), "from_layers=5: allowed is a multiple of block=2"),
        ((0, 8, 2), "from_layers=0: allowed is a multiple of block=2"),
        ((4, 7, 2), "to_layers=7: allowed is a multiple of block=2"),
        ((6, 4, 2), "to_layers=4: allowed is from_layers=6 or more"),
        ((6, 8, 0), "from_layers=6: allowed is a multiple of block=0"),
    ],
)
def test_sizes_that_do_not_grow_into_each_other(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        source_layers(*arguments)
    assert str(error.value) == message


@pytest.mark.parametrize(("blocks", "looped"), [(1, "2x2"), (2, "2x(2,1)"), (3, "2x(1,2,1)"), (4, "2x(1,2,1,1)")])
def test_the_grown_model_is_the_small_one_with_its_middle_block_looped_twice(blocks: int, looped: str) -> None:
    small, grown = model_of(2 * blocks), model_of(2 * blocks + 2, seed=1)
    grown.load_state_dict(grow(small.state_dict(), 2 * blocks, 2 * blocks + 2, block=2))
    tokens = torch.randint(7, (3, 5))
    twice = small.readout(small.loop(small.embed(tokens), LoopPlan.parse(looped).passes, small.context(((3, 5),))))
    torch.testing.assert_close(grown(tokens), twice)
    assert not torch.allclose(grown(tokens), small(tokens), atol=1e-2)  # stacking does not keep the function


def test_growing_leaves_what_it_grows_from_alone_and_shares_nothing() -> None:
    small = {name: tensor.clone() for name, tensor in model_of(4).state_dict().items()}
    before = {name: tensor.clone() for name, tensor in small.items()}
    grown = grow(small, 4, 8, block=2)
    for name, tensor in grown.items():
        if name.startswith("loop.layers."):
            tensor.add_(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in small.items())
    assert load(save(grown)).keys() == model_of(8).state_dict().keys()  # safetensors refuses shared memory


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon"])
def test_copies_have_the_optimizer_state_of_their_originals(optimizer: str) -> None:
    config = OPTIMIZERS[optimizer](lr=0.01)
    small = model_of(4)
    of_small = build_optimizers(config, small)
    train(small, of_small, 5)
    grown = model_of(6, seed=1)
    of_grown = build_optimizers(config, grown)
    weights, state = small.state_dict(), optimizer_tensors(small, of_small)
    grown.load_state_dict(grow(weights, 4, 6, block=2))
    load_optimizer_tensors(grown, of_grown, grow(state, 4, 6, block=2))
    for found, wanted in ((grown.state_dict(), weights), (optimizer_tensors(grown, of_grown), state)):
        for name, tensor in found.items():
            _, *in_layer = name.split("loop.layers.")
            if in_layer:
                layer, _, rest = in_layer[0].partition(".")
                name = f"loop.layers.{[0, 1, 0, 1, 2, 3][int(layer)]}.{rest}"
            assert torch.equal(tensor, wanted[name]), name
    assert any(bool(tensor.any()) for name, tensor in state.items() if "layers.1" in name)
    assert math.isfinite(train(grown, of_grown, 3))
    one, other = (layers_of(grown)[layer].attention.qkv.weight for layer in (0, 2))
    assert not torch.equal(one, other)  # from here on they go their own ways


def test_a_layer_that_is_not_there_is_named() -> None:
    state = {"loop.layers.4.attention.qkv.weight/exp_avg": torch.zeros(1)}
    with pytest.raises(
        ConfigError, match=r"^loop.layers.4.attention.*: allowed are layers 0 to 3, since from_layers=4$"
    ):
        grow(state, 4, 6, block=2)


@given(st.integers(1, 4), st.lists(st.integers(1, 50), min_size=1, max_size=5, unique=True).map(sorted))
def test_each_stage_has_its_plan(block: int, grow_at: list[int]) -> None:
    config = StackingConfig(block, tuple(grow_at))
    layers = [config.layers_at(step) for step in range(60)]
    assert layers[0] == block
    assert [step for step in range(1, 60) if layers[step] > layers[step - 1]] == grow_at
    assert layers[-1] == block * (1 + len(grow_at))
    for step, count in enumerate(layers):
        plan = config.plan_at(step)
        assert (plan.distinct_layers, plan.depth) == (count, count)


@pytest.mark.parametrize(
    ("block", "grow_at", "allowed"),
    [
        (0, (5,), "grow_at=(5,): allowed is nothing, since block=0"),
        (2, (), "grow_at=(): allowed is one step or more, each later than the last"),
        (2, (0, 5), "grow_at=(0, 5): allowed is one step or more, each later than the last"),
        (2, (5, 5), "grow_at=(5, 5): allowed is one step or more, each later than the last"),
        (2, (9, 5), "grow_at=(9, 5): allowed is one step or more, each later than the last"),
    ],
)
def test_bad_schedules_are_named(block: int, grow_at: tuple[int, ...], allowed: str) -> None:
    with pytest.raises(ConfigError) as error:
        StackingConfig(block, grow_at)
    assert str(error.value) == f"stacking.{allowed}"


@pytest.mark.parametrize(
    ("plan", "steps", "allowed"),
    [
        ("6x4", 100, "what grows into the model's plan 6x4, not into 18x1"),
        ("24x1", 100, "what grows into the model's plan 24x1, not into 18x1"),
        ("18x1", 20, "steps before the last, steps=20"),
    ],
)
def test_a_schedule_must_end_in_the_model_and_in_time(plan: str, steps: int, allowed: str) -> None:
    config = StackingConfig(6, (10, 20))
    config.check(LoopPlan.parse("18x1"), 21)
    with pytest.raises(ConfigError) as error:
        config.check(LoopPlan.parse(plan), steps)
    assert str(error.value) == f"stacking.grow_at=(10, 20): allowed is {allowed}"
