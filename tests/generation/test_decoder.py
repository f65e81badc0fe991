"""Cached decoding is what the model says: for every plan and option, in batches, with any loops, and with exits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_references import logits_with_exits, logits_with_last, logits_with_window
from torch import Tensor

from loopt import InputError, LoopedTransformer, LoopPlan, ModelConfig
from loopt.generation import CachePolicy, Decoder, Divergence, Entropy, ExitRule, Gate, StateChange
from loopt.generation.cache import KeyValueCache, PolicyName, cache_bytes
from loopt.generation.plain_layer import plain_layers
from loopt.model import Layer

PLANS = ["1x1", "3x1", "1x4", "2x3", "1x(1,3,1)", "1x1+2x2+1x1", "2x3*+2x2"]
SMALL = ModelConfig(LoopPlan.parse("1x3"), d_model=16, n_heads=4, d_ff=24, vocab_size=11, max_len=16)
configs = st.builds(
    ModelConfig,
    plan=st.sampled_from(PLANS).map(LoopPlan.parse),
    d_model=st.just(16),
    n_heads=st.just(4),
    d_ff=st.just(24),
    vocab_size=st.just(11),
    max_len=st.just(16),
    positions=st.sampled_from(["rope", "learned", "none"]),
    norm_placement=st.sampled_from(["pre", "sandwich"]),
    feed_forward=st.sampled_from(["gelu", "swiglu"]),
    biases=st.sampled_from(["none", "all"]),
    tied_readout=st.booleans(),
    n_kv_heads=st.sampled_from([None, 1, 2]),
    qk_norm=st.booleans(),
    loop_norm=st.sampled_from(["none", "own", "final"]),
    injection=st.sampled_from(["none", "added", "matrix"]),
    loop_embedding=st.booleans(),
    residual_scaling=st.booleans(),
    exit_gate=st.booleans(),
)
prompts_of = st.lists(st.integers(1, 8), min_size=1, max_size=4)
RULES = [StateChange(0.68), Divergence(0.3), Entropy(2.1), Gate(0.5)]


def build(config: ModelConfig, seed: int = 0) -> LoopedTransformer:
    torch.manual_seed(seed)
    model = LoopedTransformer(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def texts(count: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(11, (count, length), generator=torch.Generator().manual_seed(seed))


def decode(decoder: Decoder, ids: Tensor, lengths: list[int], steps: int) -> Tensor:
    """The logits after each row's prompt and after each of the ``steps`` tokens that follow: [B, 1 + steps, V]."""
    decoder.prefill([row[:length].tolist() for row, length in zip(ids, lengths, strict=True)])
    found = [decoder.logits.clone()]
    for step in range(steps):
        decoder.step(torch.stack([row[length + step] for row, length in zip(ids, lengths, strict=True)]))
        found.append(decoder.logits.clone())
    return torch.stack(found, dim=1)


@settings(max_examples=60, deadline=None)
@given(configs, prompts_of, st.sampled_from([None, 1, 2, 6]), st.integers(0, 7))
def test_cached_decoding_says_what_the_model_says(
    config: ModelConfig, lengths: list[int], loops: int | None, steps: int
) -> None:
    model, ids = build(config), texts(len(lengths), 16)
    found = decode(Decoder(model, len(lengths), 15, loops=loops), ids, lengths, steps)
    wanted = model(ids, loops)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row], wanted[row, length - 1 : length + steps], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("feed_forward", ["gelu", "relu", "swiglu"])
@pytest.mark.parametrize("residual_scaling", [False, True])
def test_a_plain_layer_computes_what_the_layer_does(feed_forward: Any, residual_scaling: bool) -> None:
    model = build(replace(SMALL, feed_forward=feed_forward, residual_scaling=residual_scaling))
    run, (layer,) = plain_layers(model), model.loop.layers
    with torch.no_grad():
        for parameter in model.parameters():  # what is learned later shows
            parameter.mul_(1.5)
    assert isinstance(layer, Layer)
    x, context = torch.randn(2, 5, 16, dtype=torch.float64), model.context(((2, 5),))
    torch.testing.assert_close(run(layer, x, context), layer(x, context), rtol=1e-9, atol=1e-9)


@settings(max_examples=20, deadline=None)
@given(configs, prompts_of, st.integers(0, 4))
def test_a_decoder_forgets_what_it_read_before(config: ModelConfig, lengths: list[int], steps: int) -> None:
    model, rows = build(config), len(lengths)
    decoder = Decoder(model, rows, 12)
    decode(decoder, texts(rows, 16, seed=5), [8] * rows, 4)
    found = decode(decoder, texts(rows, 16), lengths, steps)
    assert torch.equal(found, decode(Decoder(model, rows, 12), texts(rows, 16), lengths, steps))


@settings(max_examples=40, deadline=None)
@given(configs, prompts_of, st.sampled_from([2, 3, 5]), st.sampled_from(RULES), st.integers(1, 5))
def test_decoding_with_exits_is_what_the_slow_reference_says(
    config: ModelConfig, lengths: list[int], loops: int, rule: ExitRule, steps: int
) -> None:
    model, ids = build(config), texts(len(lengths), 16)
    if isinstance(rule, Gate) and not config.has_exit_gate:
        return
    plan = model.plan_with(loops)
    decoder = Decoder(model, len(lengths), 15, loops=loops, exit_rule=rule)
    decoder.prefill([row[:length].tolist() for row, length in zip(ids, lengths, strict=True)])
    exits = [[loops] * length for length in lengths]
    for step in range(steps):
        decoder.step(torch.stack([row[length + step] for row, length in zip(ids, lengths, strict=True)]))
        for row, length in enumerate(lengths):
            tokens = ids[row, : length + step + 1].tolist()
            wanted, used = logits_with_exits(model, tokens, exits[row], plan, rule)
            exits[row].append(used)
            assert decoder.loops_used[row].item() == used
            torch.testing.assert_close(decoder.logits[row], wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_rules_let_rows_leave_at_different_loops(rule: ExitRule) -> None:
    """So that the test above sees some leave, and others stay."""
    model = build(replace(SMALL, plan=LoopPlan.parse("1x4"), exit_gate=True))
    decoder, ids = Decoder(model, 8, 15, exit_rule=rule), texts(8, 16)
    used = []
    decoder.prefill(ids[:, :4].tolist())
    for step in range(8):
        decoder.step(ids[:, 4 + step])
        used += decoder.loops_used.tolist()
    assert len(set(used)) >= 2, used


def test_a_rule_that_never_holds_changes_nothing() -> None:
    model, ids, lengths = build(SMALL), texts(3, 16), [3, 6, 1]
    never = decode(Decoder(model, 3, 15, exit_rule=Entropy(0.0)), ids, lengths, 6)
    torch.testing.assert_close(never, decode(Decoder(model, 3, 15), ids, lengths, 6), rtol=1e-12, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(configs, prompts_of, st.sampled_from([None, 2, 5]), st.integers(1, 20), st.integers(0, 6))
def test_a_window_is_what_the_slow_reference_says(
    config: ModelConfig, lengths: list[int], loops: int | None, window: int, steps: int
) -> None:
    model, ids = build(config), texts(len(lengths), 16)
    policy = CachePolicy("first+window", window)
    found = decode(Decoder(model, len(lengths), 15, loops=loops, policy=policy), ids, lengths, steps)
    for row, length in enumerate(lengths):
        tokens = ids[row, : length + steps].tolist()
        wanted = logits_with_window(model, tokens, model.plan_with(loops), window)
        torch.testing.assert_close(found[row], wanted[length - 1 :], rtol=1e-9, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(configs, prompts_of, st.sampled_from([None, 2, 5]), st.integers(0, 6))
def test_keeping_the_last_loop_is_what_the_slow_reference_says(
    config: ModelConfig, lengths: list[int], loops: int | None, steps: int
) -> None:
    model, ids = build(config), texts(len(lengths), 16)
    found = decode(Decoder(model, len(lengths), 15, loops=loops, policy=CachePolicy("last")), ids, lengths, steps)
    for row, length in enumerate(lengths):
        prompt, following = ids[row, :length].tolist(), ids[row, length : length + steps].tolist()
        wanted = logits_with_last(model, prompt, following, model.plan_with(loops))
        torch.testing.assert_close(found[row], wanted, rtol=1e-9, atol=1e-9)


def test_policies_differ_where_they_should() -> None:
    model, ids = build(SMALL), texts(2, 16)
    exact, last, window = (
        decode(Decoder(model, 2, 15, policy=CachePolicy(name, 3)), ids, [5, 5], 4) for name in get_args(PolicyName)
    )
    assert torch.equal(exact[:, 0], last[:, 0])  # prefill is the same
    assert not torch.allclose(exact[:, 2:], last[:, 2:])
    assert not torch.allclose(exact, window)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(PLANS).map(LoopPlan.parse),
    st.sampled_from([None, 1, 2]),
    st.sampled_from(["all", "last", "first+window"]),
    st.integers(1, 20),
    st.integers(1, 3),
    st.integers(1, 15),
)
def test_counted_memory_is_what_is_allocated(
    plan: LoopPlan, n_kv_heads: int | None, policy: Any, window: int, batch: int, length: int
) -> None:
    config = replace(SMALL, plan=plan, n_kv_heads=n_kv_heads)
    kept = CachePolicy(policy, window)
    cache = KeyValueCache(config, plan, batch, length, kept, torch.device("cpu"), torch.bfloat16)
    places = {place.keys.data_ptr(): place for place in cache.places.values()}  # one each, where loops share it
    counted = sum(place.keys.nbytes + place.values.nbytes for place in places.values())
    assert counted == cache.bytes == cache_bytes(config, plan, batch, length, kept, 2)
    assert cache.places.keys() == {(step.layer, step.loop) for step in plan.steps}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: CachePolicy("some"), "cache=some: allowed is all | last | first+window"),  # type: ignore[arg-type]
        (lambda model: CachePolicy("first+window", 0), "window=0: allowed is 1 to"),
        (lambda model: Decoder(model, 1, 4, exit_rule=Gate(0.5)), "exit=gate: this model has no exit gate"),
        (
            lambda model: Decoder(model, 1, 4, exit_rule=Entropy(1.0), policy=CachePolicy("last")),
            "cache=last: allowed is all with an exit rule",
        ),
        (lambda model: Decoder(model, 1, 4).prefill([[1] * 5]), "1 prompts of 5 to 5 tokens: allowed are 1 of 1 to 4"),
        (lambda model: Decoder(model, 2, 4).prefill([[1]]), "1 prompts of 1 to 1 tokens: allowed are 2 of 1 to 4"),
        (lambda model: Decoder(model, 1, 4).prefill([[]]), "1 prompts of 0 to 0 tokens"),
        (
            lambda model: Decoder(model, 10**6, 10**6),
            "keys and values of 1,000,000 sequences of 1,000,000 tokens would",
        ),
    ],
)
def test_what_cannot_be_decoded_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        call(build(SMALL))
    assert str(caught.value).startswith(message)
