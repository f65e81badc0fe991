from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopt import LoopedTransformer, LoopPlan, ModelConfig
from loopt.errors import ConfigError
from loopt.model_config import FeedForwardKind
from loopt.runs.config import RegularizerConfig, RegularizerKind
from loopt.runs.optimizers import OPTIMIZERS
from loopt.similarity import layer_groups
from loopt.training.optim import build_optimizers, learning_rate, set_lr
from loopt.training.regularizer import add_gradient, add_regularizer_gradient
from ranks import in_ranks
from tiny_runs import layers_of

SMALL = ModelConfig(
    LoopPlan.parse("6x1"), d_model=8, n_heads=2, d_ff=12, vocab_size=11, max_len=7, feed_forward="swiglu"
)
STEPS = 200
EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}


def build(config: ModelConfig = SMALL, dtype: torch.dtype = torch.float64) -> LoopedTransformer:
    torch.manual_seed(3)
    model = LoopedTransformer(config).to(dtype)
    with torch.no_grad():  # blocks that are alike to some degree, and of different sizes
        for size, layer in enumerate(model.loop.layers, start=1):
            for first, own in zip(model.loop.layers[0].parameters(), layer.parameters(), strict=True):
                own.copy_(size * (own + 0.5 * first))
    return model


def groups(model: LoopedTransformer) -> list[dict[str, Tensor]]:
    return [layer_groups(layer) for layer in layers_of(model)]


def cross_entropy(model: LoopedTransformer) -> Tensor:
    tokens = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(1))
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())


def cosines(layers: list[dict[str, Tensor]], k: int) -> dict[str, Tensor]:
    """cos(W_i, W_{i+k}) for every i, by group and by autograd."""
    pairs = list(zip(layers[:-k], layers[k:], strict=True))
    cosine = torch.nn.functional.cosine_similarity
    return {
        name: torch.stack([cosine(a[name].flatten(), b[name].flatten(), 0) for a, b in pairs]) for name in layers[0]
    }


def penalty(layers: list[dict[str, Tensor]], config: RegularizerConfig) -> Tensor:
    """What is added to the loss, from the definitions and by autograd."""
    k = config.block
    if config.kind == "cosine":
        return -config.weight * torch.stack([of_group.mean() for of_group in cosines(layers, k).values()]).mean()
    by_group = []
    for name in layers[0]:
        pairs = [(layers[i][name], layers[i + k][name]) for i in range(len(layers) - k)]
        distances = [(a - b).square().sum() / (a.square().sum() + b.square().sum()) for a, b in pairs]
        by_group.append(torch.stack(distances).mean())
    return config.weight * torch.stack(by_group).mean()


def gradients(model: LoopedTransformer) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ["cosine", "l2"])
@pytest.mark.parametrize("feed_forward", ["gelu", "swiglu"])
@pytest.mark.parametrize(("plan", "block"), [("6x1", 1), ("6x1", 2), ("6x1", 3), ("4x2", 2), ("2x(1,3,1)", 2)])
def test_the_gradient_is_that_of_the_definition(
    plan: str, block: int, feed_forward: FeedForwardKind, kind: RegularizerKind
) -> None:
    shape = replace(SMALL, plan=LoopPlan.parse(plan), feed_forward=feed_forward)
    config = RegularizerConfig(block, weight=3.0, kind=kind)
    ours, autograd = build(shape), build(shape)
    (cross_entropy(autograd) + penalty(groups(autograd), config)).backward()
    cross_entropy(ours).backward()
    found = add_regularizer_gradient(ours, config)
    wanted = gradients(autograd)
    assert gradients(ours).keys() == wanted.keys()
    for name, grad in gradients(ours).items():
        torch.testing.assert_close(grad, wanted[name], **EXACT)
    for name, of_group in cosines(groups(ours), block).items():
        torch.testing.assert_close(found[name], of_group.mean().detach(), **EXACT)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(2, 1), (3, 1), (4, 2), (6, 2), (6, 3), (8, 2)]),
    st.sampled_from(["cosine", "l2"]),
    st.lists(st.integers(-3, 3), min_size=8, max_size=8),
    st.integers(0, 2**31),
)
def test_in_float32_it_is_that_of_float64_but_for_rounding(
    shape: tuple[int, int], kind: RegularizerKind, exponents: list[int], seed: int
) -> None:
    """Weights of very different sizes, layers of any number, for the layers of no model in particular."""
    generator = torch.Generator().manual_seed(seed)
    layers, block = shape
    weights = [
        {name: torch.randn(5, 4, generator=generator) * 10.0**exponent for name in ("up", "down")}
        for exponent in exponents[:layers]
    ]
    exact = [{name: matrix.double().requires_grad_() for name, matrix in layer.items()} for layer in weights]
    grads = [{name: torch.zeros_like(matrix) for name, matrix in layer.items()} for layer in weights]
    config = RegularizerConfig(block, 1.0, kind)
    penalty(exact, config).backward()
    add_gradient(weights, grads, config)
    for found, wanted in zip(grads, exact, strict=True):
        for name in found:
            grad = wanted[name].grad
            assert grad is not None
            torch.testing.assert_close(
                found[name].double(), grad, rtol=1e-4, atol=2e-6 * (1 / wanted[name].norm()).item()
            )


def test_weight_zero_changes_no_bit() -> None:
    model = build(dtype=torch.float32)
    cross_entropy(model).backward()
    before = gradients(model)
    found = add_regularizer_gradient(model, RegularizerConfig(2, 0.0))
    assert all(torch.equal(grad, before[name]) for name, grad in gradients(model).items())
    assert found.keys() == groups(model)[0].keys()  # the cosines are told all the same


def test_a_step_against_the_gradient_brings_blocks_together() -> None:
    """The sign: the paper's own would do the opposite."""
    model = build()
    config = RegularizerConfig(3, 1.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = add_regularizer_gradient(model, config)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    after = add_regularizer_gradient(model, config)
    assert all(after[name] > before[name] for name in before)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "optimizer"), [("cosine", "adafactor"), ("l2", "adamw")])
def test_a_large_weight_makes_the_blocks_one(kind: RegularizerKind, optimizer: str) -> None:
    torch.manual_seed(0)
    model = LoopedTransformer(SMALL)
    config = RegularizerConfig(2, 1000.0, kind)
    updates = build_optimizers(OPTIMIZERS[optimizer](lr=0.02), model)
    started = add_regularizer_gradient(model, replace(config, weight=0.0))
    assert max(started.values()) < 0.5
    for step in range(STEPS):
        model.zero_grad()
        cross_entropy(model).backward()
        add_regularizer_gradient(model, config)
        set_lr(updates, learning_rate(step, STEPS, 0.02, 0))
        for update in updates:
            update.step()
    layers = groups(model)
    assert min(of_group.min().item() for of_group in cosines(layers, 2).values()) > 0.98
    sizes = [layers[i][name].norm() / layers[i + 2][name].norm() for name in layers[0] for i in range(4)]
    apart = max(ratio.log().abs() for ratio in sizes).item()
    assert apart < 0.02 if kind == "l2" else apart > 0.02  # what the cosine leaves open


def test_a_zero_matrix_is_left_alone() -> None:
    """Its cosine with anything is 0/0; what it is compared with keeps its other neighbour."""
    weights = [{"up": torch.randn(3, 3)}, {"up": torch.zeros(3, 3)}, {"up": torch.randn(3, 3)}]
    grads = [{"up": torch.zeros(3, 3)} for _ in weights]
    found = add_gradient(weights, grads, RegularizerConfig(1, 1.0))
    assert found["up"] == 0
    assert all(bool((grad["up"] == 0).all()) for grad in grads)


def test_low_precision_is_summed_in_float32() -> None:
    weights = [{"up": torch.randn(32, 32).bfloat16()} for _ in range(4)]
    grads = [{"up": torch.zeros(32, 32).bfloat16()} for _ in weights]
    high = [{"up": torch.zeros(32, 32)} for _ in weights]
    config = RegularizerConfig(2, 1.0)
    found = add_gradient(weights, grads, config)
    wanted = add_gradient([{"up": layer["up"].float()} for layer in weights], high, config)
    assert torch.equal(found["up"], wanted["up"])
    for low, exact in zip(grads, high, strict=True):
        assert low["up"].dtype == torch.bfloat16
        torch.testing.assert_close(low["up"].float(), exact["up"], rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize(
    ("plan", "block", "allowed"),
    [
        ("6x1", 4, "1 | 2 | 3, to divide the model's 6 distinct layers and leave some to compare"),
        ("6x1", 6, "1 | 2 | 3, to divide the model's 6 distinct layers and leave some to compare"),
        ("4x6", 8, "1 | 2, to divide the model's 4 distinct layers and leave some to compare"),
        ("1x6", 1, "nothing, to divide the model's 1 distinct layers and leave some to compare"),
    ],
)
def test_a_block_must_divide_the_distinct_layers(plan: str, block: int, allowed: str) -> None:
    config = RegularizerConfig(block, 0.0)
    with pytest.raises(ConfigError) as error:
        config.check(LoopPlan.parse(plan).distinct_layers)
    assert str(error.value) == f"regularizer.block={block}: allowed is {allowed}"
    with pytest.raises(ConfigError):
        add_regularizer_gradient(LoopedTransformer(replace(SMALL, plan=LoopPlan.parse(plan))), config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": -1}, "regularizer.block=-1: allowed is 1 or more, or 0 for none"),
        ({"weight": -1.0}, "regularizer.weight=-1.0: allowed is 0 or more"),
        ({"weight": float("nan")}, "regularizer.weight=nan: allowed is 0 or more"),
        ({"weight": float("inf")}, "regularizer.weight=inf: allowed is 0 or more"),
        ({"kind": "l1"}, "regularizer.kind=l1: allowed is cosine | l2"),
    ],
)
def test_bad_settings_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        replace(RegularizerConfig(2, 1.0), **change)  # type: ignore[arg-type]
    assert str(error.value) == message


def _sharded(rank: int, folder: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    shape = replace(SMALL, d_model=6, n_heads=1, head_dim=10, d_ff=9)  # 30 rows in two parts cut the keys; 9 uneven
    config = RegularizerConfig(2, 3.0)
    whole, sharded = build(shape), build(shape)
    fully_shard(sharded.loop, mesh=init_device_mesh("cpu", (2,)))
    figures = []
    for model in (whole, sharded):
        cross_entropy(model).backward()
        figures.append(add_regularizer_gradient(model, config))
    assert figures[0].keys() == figures[1].keys()
    for name, cosine in figures[0].items():
        torch.testing.assert_close(figures[1][name], cosine, **EXACT)
    for (name, one), other in zip(sharded.named_parameters(), whole.parameters(), strict=True):
        assert isinstance(one.grad, DTensor if name.startswith("loop.") else Tensor)
        grad = one.grad.full_tensor() if isinstance(one.grad, DTensor) else one.grad
        torch.testing.assert_close(grad, other.grad, **EXACT)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_a_sharded_model_gets_the_same_gradient(tmp_path: Path) -> None:
    in_ranks(_sharded, tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["cosine", "l2"])
def test_compiled_and_captured_it_adds_the_same(kind: RegularizerKind) -> None:
    config = RegularizerConfig(2, 3.0, kind)
    plain, compiled = build(dtype=torch.float32).cuda(), build(dtype=torch.float32).cuda()
    for model in (plain, compiled):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    wanted = [add_regularizer_gradient(plain, config) for _ in range(3)][-1]
    add_regularizer_gradient(compiled, config, compiled=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = add_regularizer_gradient(compiled, config, compiled=True)
    for _ in range(2):
        graph.replay()
    torch.testing.assert_close(found, wanted)
    for name, grad in gradients(compiled).items():
        torch.testing.assert_close(grad, gradients(plain)[name])
