"""The looped transformer: looping is weight sharing, and the counts are those of the real model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from loopt import InputError, LoopedTransformer, LoopPlan, ModelConfig
from loopt.errors import ConfigError

PLANS = ["1x1", "1x4", "2x3", "3x2", "4x1", "1x(1,3,1)", "1x1+2x2+1x1", "2x3*+2x2"]
SMALL = ModelConfig(plan=LoopPlan.parse("1x3"), d_model=16, n_heads=2, d_ff=24, vocab_size=11, max_len=12)
VARIANTS = {
    "default": SMALL,
    "learned positions, LayerNorm with bias": replace(SMALL, positions="learned", norm="layer", biases="all"),
    "no positions, sandwich norm, gate": replace(
        SMALL, positions="none", norm_placement="sandwich", feed_forward="swiglu"
    ),
    "the theory's": replace(
        SMALL,
        positions="learned",
        norm_placement="none",
        feed_forward="relu",
        biases="feed_forward",
        head_dim=5,
        attention_scale=1.0,
    ),
    "tied, wide heads": replace(SMALL, tied_readout=True, head_dim=14, n_heads=3),
}
variants = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())


def build(config: ModelConfig, seed: int = 0) -> LoopedTransformer:
    torch.manual_seed(seed)
    model = LoopedTransformer(config).double()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too, so that nothing hides at its starting value
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def some_ids(config: ModelConfig, batch: int = 3, length: int = 9) -> Tensor:
    return torch.randint(config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("plan", PLANS)
@variants
def test_looping_is_an_unrolled_model_with_tied_weights(config: ModelConfig, plan: str) -> None:
    looped = build(replace(config, plan=LoopPlan.parse(plan)))
    unrolled = build(replace(config, plan=looped.config.plan.iso_flop), seed=9)
    steps = looped.config.plan.steps
    weights = {name: value for name, value in looped.state_dict().items() if not name.startswith("loop.layers.")}
    for step in steps:
        for name, value in looped.loop.layers[step.layer].state_dict().items():
            weights[f"loop.layers.{step.slot}.{name}"] = value
    unrolled.load_state_dict(weights)

    ids = some_ids(config)
    torch.testing.assert_close(looped(ids), unrolled(ids), rtol=1e-12, atol=1e-12)

    probe = torch.randn(*ids.shape, config.vocab_size, dtype=torch.float64)
    for model in (looped, unrolled):
        (model(ids) * probe).sum().backward()
    for layer in range(looped.config.plan.distinct_layers):
        slots = [step.slot for step in steps if step.layer == layer]
        for name, parameter in looped.loop.layers[layer].named_parameters():
            copies = [unrolled.loop.layers[slot].get_parameter(name).grad for slot in slots]
            torch.testing.assert_close(parameter.grad, sum(copies), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(looped.token_embedding.weight.grad, unrolled.token_embedding.weight.grad)


@pytest.mark.parametrize("plan", PLANS)
@variants
def test_parameter_count_is_the_models(config: ModelConfig, plan: str) -> None:
    config = replace(config, plan=LoopPlan.parse(plan))
    assert config.parameters() == sum(p.numel() for p in LoopedTransformer(config).parameters())


@pytest.mark.parametrize("plan", PLANS)
@variants
def test_flop_count_is_the_models(config: ModelConfig, plan: str) -> None:
    model = LoopedTransformer(replace(config, plan=LoopPlan.parse(plan)))
    with (
        FlopCounterMode(display=False) as counted,
        sdpa_kernel(SDPBackend.MATH),
    ):  # the counter skips CPU's fused kernel
        model(some_ids(config, batch=1, length=7))
    assert model.config.flops(7) == counted.get_total_flops()


@variants
def test_attention_is_the_definition(config: ModelConfig) -> None:
    model = build(replace(config, positions="none" if config.positions == "rope" else config.positions))
    attention = model.loop.layers[0].attention
    x = torch.randn(2, 7, config.d_model, dtype=torch.float64)
    qkv = attention.qkv(x).unflatten(-1, (3, config.n_heads, config.width_of_head))
    mixed = torch.zeros(2, 7, config.n_heads, config.width_of_head, dtype=torch.float64)
    for head in range(config.n_heads):
        q, k, v = (qkv[:, :, part, head] for part in range(3))
        for i in range(7):
            scores = (k[:, : i + 1] @ q[:, i, :, None])[..., 0] * config.scale
            mixed[:, i, head] = (scores.softmax(-1)[:, None] @ v[:, : i + 1])[:, 0]
    torch.testing.assert_close(attention(x, ((2, 7),), None), attention.output(mixed.flatten(2)))


@variants
def test_batches_end_to_end_are_what_each_is_alone(config: ModelConfig) -> None:
    model = build(config)
    batches = [torch.randint(config.vocab_size, shape) for shape in ((3, 5), (1, 1), (2, 7))]
    packed = torch.cat([model.embed(ids).flatten(0, 1) for ids in batches])  # [15 + 1 + 14, D]
    states: list[torch.Tensor] = []
    found = model.readout(model.iterate(packed, states=states, parts=((3, 5), (1, 1), (2, 7))))
    alone = [model(ids).flatten(0, 1) for ids in batches]
    torch.testing.assert_close(found, torch.cat(alone))
    assert {state.shape for state in states} == {packed.shape}


def test_rotary_scores_depend_on_distance_alone() -> None:
    from loopt.model import _rotate

    cos, sin = (t.double() for t in (build(SMALL).loop.cos, build(SMALL).loop.sin))
    x = torch.randn(1, 1, 2, 1, SMALL.width_of_head, dtype=torch.float64).expand(1, 12, 2, 1, -1)
    turned = _rotate(x, cos, sin)[0, :, :, 0]  # [12, 2, E]
    scores = turned[:, 0] @ turned[:, 1].T
    for distance in range(-5, 6):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-6, atol=1e-6)
    assert (scores[0] - scores[0, 0]).abs().max() > 1e-2
    torch.testing.assert_close(turned.norm(dim=-1), x[0, :, :, 0].norm(dim=-1), rtol=1e-6, atol=1e-6)


@variants
def test_a_token_sees_only_what_came_before(config: ModelConfig) -> None:
    model, ids = build(config), some_ids(config)
    changed = ids.clone()
    changed[:, 5] = (changed[:, 5] + 1) % config.vocab_size
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().amin() > 0


@given(k=st.integers(1, 3), trained=st.integers(1, 4), loops=st.integers(1, 6))
@settings(max_examples=15, deadline=None)
def test_thoughts_are_the_answers_of_shorter_models(k: int, trained: int, loops: int) -> None:
    model = build(replace(SMALL, plan=LoopPlan.parse(f"{k}x{trained}")))
    ids = some_ids(SMALL)
    thoughts = model.thoughts(ids, loops=loops)
    assert [(t.block, t.loop) for t in thoughts] == [(0, loop) for loop in range(loops)]
    for thought in thoughts:
        shorter = model(ids, loops=thought.loop + 1)
        torch.testing.assert_close(thought.probabilities, shorter.softmax(-1))
        torch.testing.assert_close(model.readout(thought.hidden), shorter)


def test_loops_at_inference_change_the_middle_block() -> None:
    model = build(replace(SMALL, plan=LoopPlan.parse("1x(1,2,1)")))
    ids = some_ids(SMALL)
    assert [(t.block, t.loop) for t in model.thoughts(ids, loops=3)] == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert torch.equal(model(ids, loops=2), model(ids))
    assert not torch.equal(model(ids, loops=3), model(ids))


def test_residual_projections_start_by_effective_depth() -> None:
    wide = replace(SMALL, d_model=256, n_heads=4, d_ff=512)
    for plan in ("1x1", "1x8", "8x1", "2x(1,6,1)"):
        torch.manual_seed(0)
        model = LoopedTransformer(replace(wide, plan=LoopPlan.parse(plan)))
        depth = model.config.plan.depth
        for layer in model.loop.layers:
            for linear in (layer.attention.output, layer.feed_forward.down):
                expected = 1 / math.sqrt(linear.in_features * 2 * depth)
                assert linear.weight.std().item() == pytest.approx(expected, rel=0.05)
            assert layer.attention.qkv.weight.std().item() == pytest.approx(1 / 16, rel=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_model": 0}, "model.d_model=0"),
        ({"n_heads": 3}, "model.n_heads=3: allowed is a divisor of d_model=16"),
        ({"head_dim": 3}, "model.head_dim=3: allowed is an even number"),
        ({"vocab_size": -1}, "model.vocab_size=-1"),
        ({"positions": "alibi"}, "model.positions=alibi: allowed is rope | learned | none"),
        ({"norm": "batch"}, "model.norm=batch"),
        ({"norm_placement": "post"}, "model.norm_placement=post"),
        ({"feed_forward": "tanh"}, "model.feed_forward=tanh"),
        ({"attention_scale": float("nan")}, "model.attention_scale=nan"),
        ({"plan": "4x"}, "plan '4x'"),
    ],
)
def test_impossible_models_are_refused_by_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(SMALL, **change)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_sizes_left_to_the_task_are_refused_by_the_model() -> None:
    with pytest.raises(ConfigError, match=r"model\.vocab_size=0"):
        LoopedTransformer(replace(SMALL, vocab_size=0))


@pytest.mark.parametrize("shape", [(5,), (1, 0), (1, 13), (1, 2, 3)])
def test_ids_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="length 1 to 12"):
        build(SMALL)(torch.zeros(shape, dtype=torch.long))
