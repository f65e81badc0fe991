"""The looped transformer: looping is weight sharing, and the counts are those of the real model."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from loopt import InputError, LoopedTransformer, LoopPlan, ModelConfig
from loopt.attention import Context, Heads, attend, rotate, split_and_rotate
from loopt.errors import ConfigError, PlanError
from loopt.model import LoopEntry, empty_model, look_up
from loopt.plan import Pass
from tiny_runs import layers_of

PLANS = ["4x1", "1x4", "2x3", "1x(1,3,1)", "1x1+2x2+1x1", "2x3*+2x2", "1x(2,2)"]
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
    "grouped keys and values": replace(SMALL, n_heads=4, n_kv_heads=2),
    "one head of keys, normed, with biases": replace(SMALL, n_kv_heads=1, qk_norm=True, biases="all"),
}
LOOP_OPTIONS = {
    "own norm between loops": replace(SMALL, loop_norm="own"),
    "final norm between loops": replace(SMALL, loop_norm="final", norm="layer", biases="all"),
    "input added": replace(SMALL, injection="added"),
    "input through a matrix": replace(SMALL, injection="matrix"),
    "an embedding per loop": replace(SMALL, loop_embedding=True),
    "scaled branches": replace(SMALL, residual_scaling=True),
    "an exit gate": replace(SMALL, exit_gate=True),
    "all of them": replace(
        SMALL,
        n_kv_heads=1,
        qk_norm=True,
        loop_norm="own",
        injection="matrix",
        loop_embedding=True,
        residual_scaling=True,
        exit_gate=True,
        norm_placement="sandwich",
    ),
}
ALL = VARIANTS | LOOP_OPTIONS
unlooped_variants = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
variants = pytest.mark.parametrize("config", ALL.values(), ids=ALL.keys())


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
@unlooped_variants
def test_looping_is_an_unrolled_model_with_tied_weights(config: ModelConfig, plan: str) -> None:
    looped = build(replace(config, plan=LoopPlan.parse(plan)))
    unrolled = build(replace(config, plan=looped.config.plan.iso_flop), seed=9)
    steps = looped.config.plan.steps
    weights = {name: value for name, value in looped.state_dict().items() if not name.startswith("loop.layers.")}
    for number, step in enumerate(steps):
        for name, value in looped.loop.layers[step.layer].state_dict().items():
            weights[f"loop.layers.{number}.{name}"] = value
    unrolled.load_state_dict(weights)

    ids = some_ids(config)
    torch.testing.assert_close(looped(ids), unrolled(ids), rtol=1e-12, atol=1e-12)

    probe = torch.randn(*ids.shape, config.vocab_size, dtype=torch.float64)
    for model in (looped, unrolled):
        (model(ids) * probe).sum().backward()
    for layer in range(looped.config.plan.distinct_layers):
        copied_to = [number for number, step in enumerate(steps) if step.layer == layer]
        for name, parameter in looped.loop.layers[layer].named_parameters():
            copies = [unrolled.loop.layers[number].get_parameter(name).grad for number in copied_to]
            torch.testing.assert_close(parameter.grad, sum(copies), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(looped.token_embedding.weight.grad, unrolled.token_embedding.weight.grad)


def enter_loop(entry: LoopEntry, x: Tensor, entered: Tensor, loop: int, config: ModelConfig) -> Tensor:
    """What happens before a loop, written out."""
    if loop:
        if config.loop_norm == "own":
            assert isinstance(entry.norm, torch.nn.RMSNorm)
            x = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * entry.norm.weight
        if config.injection == "added":
            x = x + entered
        if entry.injection is not None:
            of_state, of_input = entry.injection.weight.chunk(2, dim=1)
            x = x @ of_state.T + entered @ of_input.T
    return x if entry.embedding is None else x + entry.embedding.weight[min(loop, len(entry.embedding.weight) - 1)]


@pytest.mark.parametrize("loops", [None, 1, 5])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("config", LOOP_OPTIONS.values(), ids=LOOP_OPTIONS.keys())
def test_looping_with_options_is_an_unrolled_model_with_the_same_between_its_copies(
    config: ModelConfig, plan: str, loops: int | None
) -> None:
    looped = build(replace(config, plan=LoopPlan.parse(plan)))
    chosen = looped.config.plan
    if loops is not None and chosen.loopable is None:
        return
    twin, running = copy.deepcopy(looped), looped.plan_with(loops)
    copies = [copy.deepcopy(layers_of(looped)[step.layer]) for step in running.steps]
    ids = some_ids(config)
    x, context, number = twin.embed(ids), twin.context(((3, 9),)), 0
    entered, entries = x, dict(twin.loop.entries.items())
    for one in running.passes:
        if one.loop == 0:
            entered = x
        elif config.loop_norm == "final" and chosen.blocks[one.block].loops > 1:
            x = twin.final_norm(x)
        entry = entries.get(str(one.block))
        if isinstance(entry, LoopEntry):
            x = enter_loop(entry, x, entered, one.loop, config)
        for _ in one.layers:
            x, number = copies[number](x, context), number + 1
    unrolled = twin.readout(x)
    torch.testing.assert_close(looped(ids, loops), unrolled, rtol=1e-11, atol=1e-11)

    probe = torch.randn(*ids.shape, config.vocab_size, dtype=torch.float64)
    (looped(ids, loops) * probe).sum().backward()
    (unrolled * probe).sum().backward()
    for layer, own in enumerate(layers_of(looped)):
        copied_to = [copies[i] for i, step in enumerate(running.steps) if step.layer == layer]
        for name, parameter in own.named_parameters():
            copied = [one.get_parameter(name).grad for one in copied_to]
            torch.testing.assert_close(parameter.grad, sum(copied), rtol=1e-8, atol=1e-10)
    for name, parameter in looped.named_parameters():
        if not name.startswith("loop.layers."):
            torch.testing.assert_close(parameter.grad, twin.get_parameter(name).grad, rtol=1e-8, atol=1e-10)


def test_branches_of_looped_blocks_are_scaled_by_the_plan_of_the_config() -> None:
    """By 1/(L·√k), whatever loops run; those of blocks that do not loop are not."""
    model = build(replace(SMALL, plan=LoopPlan.parse("2x1+4x3+2x1"), residual_scaling=True))
    assert [layer.branch_factor for layer in layers_of(model)] == [1.0] * 2 + [1 / (3 * 2.0)] * 4 + [1.0] * 2
    plain = build(replace(SMALL, plan=LoopPlan.parse("4x3")))
    scaled = build(replace(SMALL, plan=LoopPlan.parse("4x3"), residual_scaling=True))
    with torch.no_grad():
        for layer in layers_of(scaled):
            for projection in (layer.attention.output, layer.feed_forward.down):
                projection.weight *= 6
    torch.testing.assert_close(scaled(some_ids(SMALL), loops=5), plain(some_ids(SMALL), loops=5))


def test_a_matrix_for_the_input_starts_as_adding_it() -> None:
    torch.manual_seed(0)
    matrix = LoopedTransformer(replace(SMALL, injection="matrix"))
    added = LoopedTransformer(replace(SMALL, injection="added"))
    added.load_state_dict({name: value for name, value in matrix.state_dict().items() if "injection" not in name})
    torch.testing.assert_close(matrix(some_ids(SMALL)), added(some_ids(SMALL)))


@pytest.mark.parametrize("plan", ["3x1", "1x(1,1)"])
def test_options_about_loops_add_nothing_to_a_model_that_does_not_loop(plan: str) -> None:
    """So the baselines of a looped model are the same with and without them."""
    loop_options = replace(LOOP_OPTIONS["all of them"], n_kv_heads=None, qk_norm=False, plan=LoopPlan.parse(plan))
    plain = replace(SMALL, plan=LoopPlan.parse(plan), norm_placement="sandwich")
    torch.manual_seed(0)
    one = LoopedTransformer(loop_options)
    torch.manual_seed(0)
    other = LoopedTransformer(plain)
    assert one.state_dict().keys() == other.state_dict().keys()
    assert torch.equal(one(some_ids(SMALL)), other(some_ids(SMALL)))


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
    attention, H, K = layers_of(model)[0].attention, config.n_heads, config.n_kv_heads or config.n_heads
    x = torch.randn(2, 7, config.d_model, dtype=torch.float64)
    qkv = attention.qkv(x).unflatten(-1, (H + 2 * K, config.width_of_head))
    queries, keys, values = qkv[:, :, :H], qkv[:, :, H : H + K], qkv[:, :, H + K :]
    if config.qk_norm:
        assert attention.query_norm is not None and attention.key_norm is not None  # noqa: PT018
        size = [(one.square().mean(-1, keepdim=True) + 1e-6).sqrt() for one in (queries, keys)]
        queries, keys = queries / size[0] * attention.query_norm.weight, keys / size[1] * attention.key_norm.weight
    mixed = torch.zeros(2, 7, H, config.width_of_head, dtype=torch.float64)
    for head in range(H):
        group = head // (H // K)
        q, k, v = queries[:, :, head], keys[:, :, group], values[:, :, group]
        for i in range(7):
            scores = (k[:, : i + 1] @ q[:, i, :, None])[..., 0] * config.scale
            mixed[:, i, head] = (scores.softmax(-1)[:, None] @ v[:, : i + 1])[:, 0]
    torch.testing.assert_close(attention(x, Context(((2, 7),), None, attend)), attention.output(mixed.flatten(2)))


@variants
def test_batches_end_to_end_are_what_each_is_alone(config: ModelConfig) -> None:
    model = build(config)
    batches = [torch.randint(config.vocab_size, shape) for shape in ((3, 5), (1, 1), (2, 7))]
    packed = torch.cat([model.embed(ids).flatten(0, 1) for ids in batches])  # [15 + 1 + 14, D]
    context = model.context(((3, 5), (1, 1), (2, 7)))
    found = model.readout(model.iterate(packed, context=context))
    alone = [model(ids).flatten(0, 1) for ids in batches]
    torch.testing.assert_close(found, torch.cat(alone))
    assert {state.shape for state in model.walk(packed, context=context)} == {packed.shape}


def test_rotary_scores_depend_on_distance_alone() -> None:
    cos, sin = (t.double() for t in (build(SMALL).loop.cos, build(SMALL).loop.sin))
    x = torch.randn(1, 1, 2, SMALL.width_of_head, dtype=torch.float64).expand(1, 12, 2, -1)
    turned = rotate(x, cos, sin)[0]  # [12, 2, E]
    scores = turned[:, 0] @ turned[:, 1].T
    for distance in range(-5, 6):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-6, atol=1e-6)
    assert (scores[0] - scores[0, 0]).abs().max() > 1e-2
    torch.testing.assert_close(turned.norm(dim=-1), x[0].norm(dim=-1), rtol=1e-6, atol=1e-6)


@variants
def test_a_token_sees_only_what_came_before(config: ModelConfig) -> None:
    model, ids = build(config), some_ids(config)
    changed = ids.clone()
    changed[:, 5] = (changed[:, 5] + 1) % config.vocab_size
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().amin() > 0


@pytest.mark.parametrize("plan", PLANS)
@variants
def test_thoughts_are_what_shorter_and_longer_models_say(config: ModelConfig, plan: str) -> None:
    """One for each loop of the loopable block, with the blocks behind it run from there."""
    model = build(replace(config, plan=LoopPlan.parse(plan)))
    ids, parsed = some_ids(config), model.config.plan
    if parsed.loopable is None:
        with pytest.raises(PlanError, match="does not tell which"):
            model.thoughts(ids)
        return
    for loops in (None, 1, 5):
        thoughts = model.thoughts(ids, loops)
        assert [thought.loops for thought in thoughts] == [
            *range(1, (loops or parsed.blocks[parsed.loopable].loops) + 1)
        ]
        for thought in thoughts:
            assert torch.equal(model.readout(thought.state), model(ids, loops=thought.loops))


def test_loops_at_inference_change_the_middle_block() -> None:
    model = build(replace(SMALL, plan=LoopPlan.parse("1x(1,2,1)")))
    ids = some_ids(SMALL)
    assert torch.equal(model(ids, loops=2), model(ids))
    assert not torch.equal(model(ids, loops=3), model(ids))


@pytest.mark.parametrize("plan", PLANS)
def test_walking_along_is_running(plan: str) -> None:
    """The states between passes are those of the model cut off there; single layers can be walked, too."""
    model = build(replace(SMALL, plan=LoopPlan.parse(plan)))
    ids = some_ids(SMALL)
    states = list(model.walk(model.embed(ids)))
    assert len(states) == len(model.config.plan.passes)
    assert torch.equal(model.readout(states[-1]), model(ids))
    one_layer_each = [
        Pass(step.block, step.loop, range(step.layer, step.layer + 1)) for step in model.config.plan.steps
    ]
    context = model.context(((ids.shape[0], ids.shape[1]),))
    (*_, last) = model.loop.walk(model.embed(ids), one_layer_each, context)
    assert torch.equal(last, states[-1])


@dataclass
class Cache:
    """Keys and values of one run of a layer, as attention saw them."""

    keys: Tensor | None = None  # [B, S, H, E]
    values: Tensor | None = None


def attend_to_cache(qkv: Tensor, context: Context, heads: Heads) -> Tensor:
    """New queries look at all keys so far, their own included."""
    ((batch, tokens),), cache = context.packing, context.cache
    q, k, v = split_and_rotate(qkv.unflatten(0, (batch, tokens)), heads, context.rope)  # [B, T, H or K, E]
    k, v = (one.repeat_interleave(heads.queries // heads.keys, dim=2) for one in (k, v))
    cache.keys = k if cache.keys is None else torch.cat([cache.keys, k], dim=1)
    cache.values = v if cache.values is None else torch.cat([cache.values, v], dim=1)
    scores = torch.einsum("bthe,bshe->bhts", q, cache.keys) * heads.scale
    seen = cache.keys.shape[1] - tokens
    future = torch.ones(tokens, seen + tokens, dtype=torch.bool).triu(seen + 1)
    mixed = scores.masked_fill(future, -math.inf).softmax(-1) @ cache.values.transpose(1, 2)  # [B, H, T, E]
    return mixed.transpose(1, 2).flatten(0, 1)


@pytest.mark.parametrize("plan", PLANS)
@variants
def test_who_walks_along_with_a_cache_decodes_what_the_model_says(config: ModelConfig, plan: str) -> None:
    """Positions start anywhere, attention is chosen per call, and what is kept goes by (layer, loop)."""
    model = build(replace(config, plan=LoopPlan.parse(plan)))
    ids, chosen = some_ids(config), model.config.plan
    caches = {(step.layer, step.loop): Cache() for step in chosen.steps}
    found, start = [], 0
    for tokens in (4, 1, 2, 1, 1):
        piece = ids[:, start : start + tokens]
        positions = torch.arange(start, start + tokens).expand(len(ids), -1)
        context = model.context(((len(ids), tokens),), positions, attend_to_cache)
        (*_, last) = model.loop.walk(model.embed(piece, positions), chosen.passes, context, caches)
        found.append(model.readout(last))
        start += tokens
    torch.testing.assert_close(torch.cat(found, dim=1), model(ids), rtol=1e-9, atol=1e-9)


def test_looking_up_by_a_product_is_the_embedding() -> None:
    """What a GPU does with a small vocabulary, so that its gradient repeats to the bit."""
    torch.manual_seed(0)
    ids, probe = torch.randint(7, (3, 50)), torch.randn(3, 50, 5)
    tables = [torch.randn(7, 5, generator=torch.Generator().manual_seed(1), requires_grad=True) for _ in range(2)]
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = look_up(ids, tables[0]), F.embedding(ids, tables[1])
    assert torch.equal(found, wanted)
    for rows in (found, wanted):
        (rows * probe).sum().backward()
    torch.testing.assert_close(tables[0].grad, tables[1].grad)


@variants
def test_recomputing_a_pass_changes_nothing(config: ModelConfig) -> None:
    plain, recomputing = build(config), build(config)
    recomputing.loop.recompute = True
    for model in (plain, recomputing):
        model(some_ids(config)).square().sum().backward()
    for one, other in zip(plain.parameters(), recomputing.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-12)


def test_residual_projections_start_by_effective_depth() -> None:
    wide = replace(SMALL, d_model=256, n_heads=4, d_ff=512)
    for plan in ("1x1", "1x8", "8x1", "2x(1,6,1)"):
        torch.manual_seed(0)
        model = LoopedTransformer(replace(wide, plan=LoopPlan.parse(plan)))
        depth = model.config.plan.depth
        for layer in layers_of(model):
            for linear in (layer.attention.output, layer.feed_forward.down):
                expected = 1 / math.sqrt(linear.in_features * 2 * depth)
                assert linear.weight.std().item() == pytest.approx(expected, rel=0.05)
            assert layer.attention.qkv.weight.std().item() == pytest.approx(1 / 16, rel=0.05)


@variants
def test_an_empty_model_is_the_model_once_it_has_its_weights(config: ModelConfig) -> None:
    model, numbers = LoopedTransformer(config), torch.get_rng_state()
    loaded = empty_model(config)
    assert torch.equal(numbers, torch.get_rng_state())
    loaded.load_state_dict(model.state_dict())
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    ids = some_ids(config)
    torch.testing.assert_close(loaded(ids), model(ids), rtol=0, atol=0)


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
        ({"n_kv_heads": 3}, "model.n_kv_heads=3: allowed is a divisor of n_heads=2"),
        ({"n_kv_heads": 0}, "model.n_kv_heads=0: allowed is a divisor of n_heads=2"),
        ({"loop_norm": "each"}, "model.loop_norm=each: allowed is none | own | final"),
        ({"injection": "gated"}, "model.injection=gated: allowed is none | added | matrix"),
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
