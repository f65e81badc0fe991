"""A config survives JSON unchanged, and what is wrong in a config file is told by name."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt import InputError, LoopPlan, ModelConfig
from loopt.errors import ConfigError
from loopt.files import parse_json
from loopt.model_config import Biases, FeedForwardKind, Injection, LoopNorm, Norm, NormPlacement, Positions
from loopt.runs import AdafactorConfig, AdamWConfig, MuonConfig, TrainConfig
from loopt.runs.codec import differences, fingerprint, from_json, to_json, without_places
from loopt.runs.config import RegularizerConfig, StartConfig
from loopt.runs.loop_counts import LoopCounts
from loopt.runs.stacking import StackingConfig
from loopt.tasks import AfterStart, PHop
from loopt.text.source import Text
from tiny_runs import TINY

CONFIG = TrainConfig(
    source=PHop(p=(1, 2), n=24, alphabet=4),
    model=ModelConfig(plan=LoopPlan.parse("4x(1,4,1)"), d_model=16, n_heads=2, d_ff=32),
    optim=AdamWConfig(lr=3e-4, warmup_steps=10),
    steps=100,
)


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


positive = st.floats(min_value=1e-300, allow_infinity=False)
counts = st.integers(1, 10**9)
plans = st.sampled_from(["1x1", "4x6", "4x(1,4,1)", "2x1+4x5+2x1", "2x3*+2x3"]).map(LoopPlan.parse)
tasks = st.builds(
    PHop,
    p=st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True).map(tuple),
    n=st.integers(11, 300),
    alphabet=st.integers(2, 26),
    sampler=st.sampled_from(["planted", "uniform"]),
    supervision=st.sampled_from(["last", "every"]),
    train_examples=some(counts),
    answer_weight=st.floats(0, 1),
    target_accuracy=some(st.floats(0, 1, exclude_min=True)),
)
texts = st.builds(Text, fingerprint=st.text())
models = st.builds(
    ModelConfig,
    plan=plans,
    d_model=st.sampled_from([8, 64]),
    n_heads=st.sampled_from([1, 2, 4]),
    d_ff=st.integers(1, 10**9),
    vocab_size=st.integers(0, 100),
    max_len=st.integers(0, 100),
    head_dim=some(st.sampled_from([2, 6])),
    attention_scale=some(st.floats(allow_nan=False, allow_infinity=False)),
    positions=st.sampled_from(get_args(Positions)),
    rope_base=positive,
    norm=st.sampled_from(get_args(Norm)),
    norm_placement=st.sampled_from(get_args(NormPlacement)),
    feed_forward=st.sampled_from(get_args(FeedForwardKind)),
    biases=st.sampled_from(get_args(Biases)),
    tied_readout=st.booleans(),
    n_kv_heads=some(st.just(1)),
    qk_norm=st.booleans(),
    loop_norm=st.sampled_from(get_args(LoopNorm)),
    injection=st.sampled_from(get_args(Injection)),
    loop_embedding=st.booleans(),
    residual_scaling=st.booleans(),
    exit_gate=st.booleans(),
)
share = st.floats(0, 1, exclude_max=True)
shared: dict[str, Any] = {
    "lr": positive,
    "warmup_steps": st.integers(0, 10),
    "weight_decay": st.floats(0, 1e300),
    "clip_norm": st.floats(min_value=1e-300),  # infinite: no clipping
}
optims = (
    st.builds(AdafactorConfig, **shared, scale_parameter=st.booleans())
    | st.builds(AdamWConfig, **shared, betas=st.tuples(share, share))
    | st.builds(MuonConfig, **shared, betas=st.tuples(share, share))
)
configs = st.builds(
    TrainConfig,
    source=tasks | texts,
    model=models,
    optim=optims,
    steps=st.integers(10, 10**9),
    batch_size=counts,
    seed=st.integers(0, 2**63 - 1),
    start=st.builds(StartConfig, run=st.text(), weights=st.sampled_from(["", "a" * 64, "b" * 64])),
    log_every=counts,
    eval_every=counts,
    eval_examples=counts,
    test_examples=counts,
)


@given(config=configs)
@settings(max_examples=100, deadline=None)
def test_a_config_survives_json(config: TrainConfig) -> None:
    text = json.dumps(to_json(config), allow_nan=False)
    read = from_json(parse_json(text, "config.json"))
    assert read == config
    assert json.dumps(to_json(read)) == text
    assert fingerprint(read) == fingerprint(config)
    assert not differences(read, config)


@given(one=configs, other=configs)
@settings(max_examples=100, deadline=None)
def test_fingerprints_and_differences_tell_configs_apart(one: TrainConfig, other: TrainConfig) -> None:
    same = without_places(one) == without_places(other)
    assert (fingerprint(one) == fingerprint(other)) == same == (not differences(one, other))


def leaves(data: dict[str, Any], *path: str) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, value in data.items():
        found += leaves(value, *path, name) if isinstance(value, dict) else [(*path, name)]
    return found


def changed(path: tuple[str, ...], value: Any) -> Any:
    """CONFIG as JSON with one field given ``value``, or taken away."""
    data = to_json(CONFIG)
    *folders, name = path
    inner = data
    for folder in folders:
        inner = inner[folder]
    if value is ...:
        del inner[name]
    else:
        inner[name] = value
    return data


ANOTHER_VALUE: dict[tuple[str, ...], Any] = {
    ("source", "p"): [3],
    ("source", "sampler"): "uniform",
    ("source", "supervision"): "every",
    ("model", "plan"): "4x(1,5,1)",
    ("model", "n_heads"): 1,
    ("model", "head_dim"): 4,
    ("model", "attention_scale"): 1.0,
    ("model", "positions"): "none",
    ("model", "norm"): "layer",
    ("model", "norm_placement"): "none",
    ("model", "feed_forward"): "relu",
    ("model", "biases"): "all",
    ("model", "d_model"): 32,
    ("model", "n_kv_heads"): 1,
    ("model", "loop_norm"): "own",
    ("model", "injection"): "added",
    ("optim", "name"): "muon",
    ("optim", "betas"): [0.9, 0.99],
    ("source", "train_examples"): 10,
    ("source", "answer_weight"): 0.5,
    ("source", "target_accuracy"): 0.5,
}
GROUPS = ("start", "regularizer", "stacking", "loop_counts")
"""Their fields make sense together only, or not all of them count."""
FIELDS = [path for path in leaves(to_json(CONFIG)) if path != ("source", "name") and path[0] not in GROUPS]
ANOTHER: dict[str, dict[str, Any]] = {
    "start.weights": {"start": StartConfig(weights="a" * 64)},
    "regularizer.block": {"regularizer": RegularizerConfig(block=2)},
    "regularizer.weight": {"regularizer": RegularizerConfig(block=0, weight=1.0)},
    "regularizer.kind": {"regularizer": RegularizerConfig(kind="l2")},
    "stacking": {"stacking": StackingConfig(block=4, grow_at=(1, 2)), "model.plan": "12x1"},
    "loop_counts": {"loop_counts": LoopCounts(low=1, high=3)},
    "loop_counts.distribution": {"loop_counts": LoopCounts(low=1, high=3, distribution="lognormal_poisson", center=2)},
    "loop_counts.problems_only": {"loop_counts": LoopCounts(low=1, high=3, problems_only=True)},
    "loop_counts.until": {"loop_counts": LoopCounts(low=1, high=4, distribution="growing", until=5)},
    "text": {"source": Text(fingerprint="abc")},
    "another optimizer": {"optim": MuonConfig(lr=3e-4, warmup_steps=10)},
}


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
def test_every_field_counts(path: tuple[str, ...]) -> None:
    before: Any = to_json(CONFIG)
    for name in path:
        before = before[name]
    if path in ANOTHER_VALUE:
        after = ANOTHER_VALUE[path]
    else:
        after = not before if isinstance(before, bool) else before + 1
    other = from_json(changed(path, after))
    assert fingerprint(other) != fingerprint(CONFIG)
    assert differences(CONFIG, other) == {".".join(path): (before, after)}


@pytest.mark.parametrize("change", ANOTHER.values(), ids=ANOTHER.keys())
def test_fields_that_go_together_count_too(change: dict[str, Any]) -> None:
    settings = dict(change)
    plan = settings.pop("model.plan", None)
    base = replace(CONFIG, model=replace(CONFIG.model, plan=LoopPlan.parse(plan))) if plan else CONFIG
    other = replace(base, **settings)
    assert from_json(json.loads(json.dumps(to_json(other)))) == other
    assert fingerprint(other) != fingerprint(base)
    assert differences(base, other)


def test_where_the_text_lies_is_no_part_of_a_run() -> None:
    base = replace(CONFIG, source=Text("here", "abc"))
    moved = replace(base, source=Text("elsewhere", "abc"))
    assert from_json(to_json(moved)) == moved
    assert fingerprint(moved) == fingerprint(base)
    assert not differences(base, moved)


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
@pytest.mark.parametrize("wrong", [..., {"a": 1}, object], ids=["missing", "an object", "unheard of"])
def test_what_is_wrong_with_a_field_is_told_by_its_name(path: tuple[str, ...], wrong: Any) -> None:
    data = changed((*path[:-1], "surprise"), 1) if wrong is object else changed(path, wrong)
    name = ".".join(["config", *path[:-1], "surprise" if wrong is object else path[-1]])
    with pytest.raises(ConfigError) as error:
        from_json(data)
    assert str(error.value).startswith((f"{name}: ", f"{name}="))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("steps",), 1.5, "config.steps=1.5: allowed is a value of type int"),
        (("steps",), True, "config.steps=True: allowed is a value of type int"),
        (("steps",), "9", "config.steps='9': allowed is a value of type int"),
        (("steps",), None, "config.steps=None: allowed is a value of type int"),
        (("steps",), 0, "steps=0: allowed is 1 to 1000000000"),
        (("steps",), 2**63, "config.steps=9223372036854775808: allowed are numbers of 64 bits"),
        pytest.param(("steps",), 10**5000, "config.steps=0x31e2080103", id="5000 digits"),
        (("optim", "lr"), math.nan, "config.optim.lr=nan: allowed is a number"),
        (("optim", "name"), "two\nlines", r"config.optim.name='two\nlines': allowed is adafactor"),
        (("optim", "two\nlines"), 1, r"config.optim.'two\nlines': no such field"),
        (("optim", "lr"), "fast", "config.optim.lr='fast': allowed is a value of type float"),
        (("model", "tied_readout"), 1, "config.model.tied_readout=1: allowed is a value of type bool"),
        (("optim", "scale_parameter"), True, "config.optim.scale_parameter: no such field; allowed are lr, warmup"),
        (("optim", "name"), "sgd", "config.optim.name=sgd: allowed is adafactor | adamw | muon"),
        (("optim", "betas"), [0.9], "config.optim.betas=[0.9]: allowed are 2 values"),
        (("optim", "betas"), [0.9, 0.9, 0.9], "config.optim.betas=[0.9, 0.9, 0.9]: allowed are 2 values"),
        (("optim", "betas"), [0.9, "b"], "config.optim.betas[1]='b': allowed is a value of type float"),
        (("optim",), None, "config.optim=None: allowed is a value of type dict"),
        (("model", "plan"), "4y6", "config.model.plan: plan '4y6': expected 'x'"),
        (("model", "plan"), 4, "config.model.plan=4: allowed is a value of type str"),
        (("model", "norm"), "batch", "config.model.norm=batch: allowed is rms | layer"),
        (("model", "d_model"), 0, "model.d_model=0: allowed is 1 "),
        (("source", "name"), "hop", "config.source.name=hop: allowed is "),
        (("source", "name"), ["phop"], "config.source.name=['phop']: allowed is "),
        (("source", "name"), ..., "config.source.name=None: allowed is "),
        (("source", "p"), [1, 2.5], "config.source.p[1]=2.5: allowed is a value of type int"),
        (("source", "alphabet"), 1, "task phop: alphabet=1; allowed are integers"),
    ],
)
def test_wrong_values_are_told(path: tuple[str, ...], value: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        from_json(changed(path, value))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("data", [None, [], 3, "config"])
def test_a_config_is_an_object(data: Any) -> None:
    with pytest.raises(ConfigError, match=r"config=.*: allowed is a value of type dict"):
        from_json(data)


def test_a_whole_number_for_a_fraction_is_the_same_config() -> None:
    whole = replace(CONFIG, optim=replace(CONFIG.optim, weight_decay=0))
    fraction = replace(CONFIG, optim=replace(CONFIG.optim, weight_decay=0.0))
    assert fingerprint(whole) == fingerprint(fraction)
    assert from_json(to_json(whole)) == fraction


def test_all_differences_are_named() -> None:
    other = replace(CONFIG, steps=99, optim=replace(CONFIG.optim, lr=1.0), source=PHop(p=(1,), n=24, alphabet=4))
    assert differences(CONFIG, other) == {"optim.lr": (0.0003, 1.0), "steps": (100, 99), "source.p": ([1, 2], [1])}


def test_a_task_within_a_task_survives_json() -> None:
    config = replace(CONFIG, source=AfterStart(task=AfterStart.of(PHop(p=(1,), n=9, alphabet=3)), train_examples=5))
    data = to_json(config)
    assert (data["source"]["task"]["name"], data["source"]["task"]["task"]["name"]) == ("after_start", "phop")
    assert from_json(json.loads(json.dumps(data))) == config
    other = replace(config, source=AfterStart(task=AfterStart.of(PHop(p=(2,), n=9, alphabet=3)), train_examples=5))
    assert differences(config, other) == {"source.task.task.p": ([1], [2])}
    assert fingerprint(config) != fingerprint(other)
    data["source"]["task"]["task"]["name"] = "text"
    with pytest.raises(ConfigError, match=r"config.source.task.task.name=text: allowed is phop \| "):
        from_json(data)
    for depth in (20, 300):
        nested = data["source"]["task"]
        for _ in range(depth):
            nested = {**data["source"], "task": nested}
        with pytest.raises(ConfigError, match="nested too deep"):
            from_json({**data, "source": nested})


@pytest.mark.parametrize("wrong", ["5", 2.5, True, None])
def test_what_is_no_integer_is_named(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"^steps={re.escape(repr(wrong))}: allowed is an integer$"):
        replace(TINY, steps=wrong)
    with pytest.raises(ConfigError, match=f"^model.d_model={re.escape(repr(wrong))}: allowed is an integer$"):
        replace(TINY.model, d_model=wrong)
    with pytest.raises(ConfigError, match=r"^model.rope_base='2000': allowed is a number$"):
        replace(TINY.model, rope_base="2000")  # type: ignore[arg-type]
