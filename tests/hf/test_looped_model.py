"""The model in Transformers says what ours says, whatever its plan and options, with every cache of Transformers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from torch import Tensor
from transformers import DynamicCache, StaticCache

import loopt
import loopt.hf
from loopt import InputError, LoopedTransformer, LoopPlan, ModelConfig
from loopt.hf.convert import to_loopt, to_transformers

SIZES: dict[str, Any] = {"d_model": 16, "n_heads": 4, "d_ff": 24, "vocab_size": 11, "max_len": 32}
PLANS = ["3x1", "2x3", "1x(1,3,1)", "2x1+1x3+1x2*"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"positions": "learned", "norm": "layer", "biases": "all", "tied_readout": True},
    {"positions": "none", "norm_placement": "none", "feed_forward": "relu", "biases": "feed_forward"},
    {"norm_placement": "sandwich", "feed_forward": "swiglu", "n_kv_heads": 2, "qk_norm": True, "rope_base": 500.0},
    {"loop_norm": "own", "injection": "added", "loop_embedding": True, "head_dim": 6, "attention_scale": 0.3},
    {"loop_norm": "final", "injection": "matrix", "residual_scaling": True, "exit_gate": True},
]


def native(plan: str = "2x3", **options: Any) -> LoopedTransformer:
    torch.manual_seed(7)
    model = LoopedTransformer(ModelConfig(plan=plan, **SIZES, **options))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():  # so that no norm, embedding or matrix is at its start
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def some_ids(rows: int = 2, length: int = 9) -> Tensor:
    """Without token 0, which pads."""
    return torch.randint(1, SIZES["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(1))


def test_the_options_tried_are_all_there_are() -> None:
    kinds = get_type_hints(ModelConfig)
    for field in dataclasses.fields(ModelConfig):
        tried = {options[field.name] for options in OPTIONS if field.name in options} | {field.default}
        choices = set(get_args(kinds[field.name])) if get_origin(kinds[field.name]) is Literal else None
        assert field.name in ("plan", *SIZES) or (tried == choices if choices else len(tried) > 1), field.name


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("plan", PLANS)
@torch.no_grad()
def test_logits_and_generations_are_ours(plan: str, options: dict[str, Any]) -> None:
    ours = native(plan, **options)
    theirs = to_transformers(ours)
    ids = some_ids()
    torch.testing.assert_close(theirs(ids).logits, ours(ids), rtol=0, atol=1e-5)
    written = theirs.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
    expected = loopt.generate(ours, ids.tolist(), max_new_tokens=12)
    assert written[:, ids.shape[1] :].tolist() == [list(one.tokens) for one in expected]
    back = to_loopt(theirs)
    assert back.config == ours.config
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in back.state_dict().items())


@pytest.mark.parametrize("loops", [1, 2, 5])
@torch.no_grad()
def test_loops_can_be_set(loops: int) -> None:
    ours = native("1x(1,3,1)", loop_embedding=True)
    theirs = to_transformers(ours)
    theirs.set_loops(loops)
    assert theirs.config.num_hidden_layers == loops + 2
    torch.testing.assert_close(theirs(some_ids()).logits, ours(some_ids(), loops=loops), rtol=0, atol=1e-5)
    written = theirs.generate(some_ids(), max_new_tokens=5, do_sample=False, pad_token_id=0)
    expected = loopt.generate(ours, some_ids().tolist(), max_new_tokens=5, loops=loops)
    assert written[:, 9:].tolist() == [list(one.tokens) for one in expected]


def test_loops_that_cannot_be_are_refused() -> None:
    model = to_transformers(native("2x(2,3)"))
    with pytest.raises(InputError, match="does not tell which"):
        model.set_loops(2)
    assert (model.config.loops, model.config.num_hidden_layers) == (None, 10)
    with pytest.raises(InputError, match="loops must be 1 or more"):
        loopt.hf.LoopedConfig(plan="2x2", loops=0)


@pytest.mark.parametrize("positions", ["rope", "learned"])
@torch.no_grad()
def test_rows_padded_on_the_left_are_what_each_is_alone(positions: str) -> None:
    model = to_transformers(native("2x3", positions=positions))
    rows = [some_ids(1, length)[0] for length in (4, 9, 7)]
    longest = max(len(row) for row in rows)
    ids = torch.stack([torch.cat([torch.zeros(longest - len(row), dtype=torch.long), row]) for row in rows])
    mask = torch.stack([(torch.arange(longest) >= longest - len(row)).long() for row in rows])
    together = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
    for row, written in zip(rows, together, strict=True):
        alone = model.generate(row[None], max_new_tokens=8, do_sample=False, pad_token_id=0)[0]
        assert written[longest:].tolist() == alone[len(row) :].tolist()
    one_step = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=2,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    ).logits
    for number, row in enumerate(rows):
        torch.testing.assert_close(one_step[0][number], model(row[None]).logits[0, -1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("cache", ["dynamic", "static", None])
@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_every_cache_generates_what_none_does(cache: str | None, beams: int) -> None:
    model = to_transformers(native("1x(1,3,1)", n_kv_heads=2))
    settings: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "num_beams": beams, "pad_token_id": 0}
    without = model.generate(some_ids(), use_cache=False, **settings)
    assert model.generate(some_ids(), cache_implementation=cache, **settings).tolist() == without.tolist()


@pytest.mark.parametrize("backend", ["fp8", "quanto", "hqq"])
@torch.no_grad()
def test_a_quantized_cache_writes_what_the_unrolled_model_writes(backend: str) -> None:
    options: dict[str, Any] = {"residual_length": 4, "nbits": 4, "q_group_size": 32, "axis_key": 1, "axis_value": 1}
    if backend == "fp8":
        options = {}
        if not hasattr(transformers.cache_utils, "Fp8QuantizedLayer"):
            pytest.skip("this release of Transformers has no fp8 cache")
    else:
        pytest.importorskip({"quanto": "optimum.quanto", "hqq": "hqq"}[backend])
        options |= {"axis_key": 0, "axis_value": 0} if backend == "quanto" else {}
    sizes: dict[str, Any] = SIZES | {"d_model": 64, "n_heads": 2, "max_len": 48}
    torch.manual_seed(0)
    looped, unrolled = (LoopedTransformer(ModelConfig(LoopPlan.parse(plan), **sizes)) for plan in ("2x3", "6x1"))
    weights = looped.state_dict()
    for number in range(6):
        of_layer = looped.loop.layers[number % 2].state_dict()
        weights |= {f"loop.layers.{number}.{name}": tensor for name, tensor in of_layer.items()}
    unrolled.load_state_dict(weights)
    settings: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    quantized = {"cache_implementation": "quantized", "cache_config": {"backend": backend, **options}}
    written, expected = (
        to_transformers(one).generate(
            some_ids(length=16), output_logits=True, return_dict_in_generate=True, **settings, **quantized
        )
        for one in (looped, unrolled)
    )
    assert written.sequences.tolist() == expected.sequences.tolist()
    torch.testing.assert_close(torch.stack(written.logits), torch.stack(expected.logits), rtol=0, atol=1e-5)
    exact = to_transformers(looped)(written.sequences[:, :-1]).logits[:, 15:]
    assert (torch.stack(written.logits, 1) - exact).abs().max() > 1e-4  # what was kept is coarser


@torch.no_grad()
def test_a_cache_has_a_place_for_every_step_and_can_be_continued() -> None:
    model = to_transformers(native("2x3"))
    ids = some_ids(2, 10)
    whole = model(ids).logits
    static = StaticCache(config=model.config, max_cache_len=16)
    for cache in (DynamicCache(config=model.config), static):
        first = model(ids[:, :6], past_key_values=cache)
        rest = model(ids[:, 6:], past_key_values=first.past_key_values)
        assert len(first.past_key_values.layers) == 6
        torch.testing.assert_close(torch.cat([first.logits, rest.logits], 1), whole, rtol=0, atol=1e-5)
    model.set_loops(4)
    with pytest.raises(IndexError):  # two steps have no place in it
        model(ids[:, :2], past_key_values=StaticCache(config=to_transformers(native("2x3")).config, max_cache_len=16))


def test_gradients_are_ours_with_and_without_checkpointing() -> None:
    ours = native("2x3", loop_norm="own", injection="matrix")
    theirs = to_transformers(ours)
    ids = some_ids()
    logits = ours(ids)[:, :-1].flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten())
    loss.backward()
    expected = {name: parameter.grad for name, parameter in ours.named_parameters()}
    for again in (False, True):
        if again:
            theirs.gradient_checkpointing_enable()
        theirs.train()
        theirs.zero_grad()
        found = theirs(ids, labels=ids).loss
        torch.testing.assert_close(found, loss)
        found.backward()
        for name, gradient in expected.items():
            ours_there = "lm_head.weight" if name == "readout_projection.weight" else f"model.{name}"
            torch.testing.assert_close(theirs.get_parameter(ours_there).grad, gradient, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_hidden_states_and_attentions_come_once_a_step() -> None:
    model = to_transformers(native("1x(1,3,1)"))
    model.set_attn_implementation("eager")
    found = model(some_ids(), output_hidden_states=True, output_attentions=True)
    assert len(found.attentions) == 5
    assert len(found.hidden_states) == 6
    sums = torch.stack(found.attentions).sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


@torch.no_grad()
def test_drafts_with_fewer_loops_change_no_token() -> None:
    model = to_transformers(native("2x4"))
    settings: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(some_ids(1), **settings)
    drafted = model.generate(some_ids(1), assistant_early_exit=2, **settings)
    assert drafted.tolist() == plain.tolist()
    assert model.config.num_hidden_layers == 8
    with pytest.raises(InputError, match="assistant_early_exit=3: allowed is a multiple of 2 below 8"):
        model.generate(some_ids(1), assistant_early_exit=3, **settings)
    config = transformers.GenerationConfig(assistant_early_exit=5, **settings)
    with pytest.raises(InputError, match="assistant_early_exit=5: allowed"):
        model.generate(some_ids(1), config)
    assert model.generate(some_ids(1), **settings).tolist() == plain.tolist()
    with pytest.raises(InputError, match="drafts need kxL"):
        to_transformers(native("1x(1,3,1)")).generate(some_ids(1), assistant_early_exit=3, **settings)


def test_a_draft_that_is_interrupted_leaves_the_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, logits_of = to_transformers(native("2x4")), some_ids(1)
    with torch.no_grad():
        expected = model(logits_of).logits
    run = loopt.hf.LoopedForCausalLM.forward

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.config.num_hidden_layers == 2:
            raise KeyboardInterrupt
        return run(self, *args, **kwargs)

    monkeypatch.setattr(loopt.hf.LoopedForCausalLM, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.generate(logits_of, assistant_early_exit=2, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert model.config.num_hidden_layers == 8
    with torch.no_grad():
        torch.testing.assert_close(model(logits_of).logits, expected)


@torch.no_grad()
def test_loops_given_when_it_is_loaded_are_those_that_run(tmp_path: Path) -> None:
    model = to_transformers(native("2x3"))
    model.save_pretrained(tmp_path)
    for loops in (2, 5):
        loaded = loopt.hf.LoopedForCausalLM.from_pretrained(tmp_path, loops=loops)
        model.set_loops(loops)
        assert loaded.config.num_hidden_layers == 2 * loops
        torch.testing.assert_close(loaded(some_ids(1)).logits, model(some_ids(1)).logits)


def test_loops_that_are_set_keep_checkpointing_as_it_was() -> None:
    model = to_transformers(native("2x3"))
    for enabled in (False, True):
        if enabled:
            model.train().gradient_checkpointing_enable()
        for loops in (5, 1, 3):
            model.set_loops(loops)
            assert {step.gradient_checkpointing for step in model.model.steps} == {enabled}
            assert {step.training for step in model.model.steps} == {enabled}


def test_a_wrong_value_is_named() -> None:
    for wrong, message in (
        ({"plan": "4y6"}, "expected 'x'"),
        ({"n_heads": 3, "d_model": 8}, "n_heads=3"),
        ({"norm": "batch"}, "rms | layer"),
    ):
        with pytest.raises(InputError, match=message.replace("|", r"\|")):
            loopt.hf.LoopedConfig(**wrong)


def test_names_of_transformers_are_ours() -> None:
    config = loopt.hf.LoopedConfig(plan="1x2", hidden_size=8, num_attention_heads=2, intermediate_size=12)
    assert (config.d_model, config.n_heads, config.d_ff, config.num_hidden_layers) == (8, 2, 12, 2)
    assert isinstance(transformers.AutoModelForCausalLM.from_config(config), loopt.hf.LoopedForCausalLM)
