"""A run may start from the weights of another: just those, named in its config, and needed until its own are saved."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loopt import LoopPlan
from loopt.cli import main
from loopt.errors import ConfigError, RunError
from loopt.runs import AdamWConfig, Run, StartConfig, TrainConfig, read_config
from loopt.runs.checkpoint import WEIGHTS, name_of, read_state
from loopt.runs.codec import differences, fingerprint, from_json, to_json
from loopt.runs.stacking import StackingConfig
from loopt.text.prepare import Settings, prepare
from loopt.text.source import Text
from loopt.training import Callback, train
from loopt.training.trainer import Trainer
from tiny_runs import CPU, TINY, Strike, assert_same, finished, snapshot, stopped, tiny
from tiny_runs import Child as Process
from tiny_text_runs import prepared, text_directory, tiny_text


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run to start from."""
    return finished(TINY, tmp_path_factory.mktemp("runs") / "taught")


def started_from(run: Path, **changes: Any) -> TrainConfig:
    return tiny(start=StartConfig(str(run)), seed=7, **changes)


def weights_of(run: Path) -> str:
    loaded = Run.load(run)
    return read_state(loaded.checkpoints / name_of(loaded.find("best").step)).files[WEIGHTS].sha256


class FirstWeights(Callback):
    """Keeps the weights that training begins with."""

    def begun(self, trainer: Trainer) -> None:
        self.weights = {name: tensor.clone() for name, tensor in trainer.learner.model.state_dict().items()}


@pytest.mark.parametrize("plan", ["1x2", "1x5"])
def test_training_begins_with_the_best_weights_of_the_other_run(plan: str, taught: Path, tmp_path: Path) -> None:
    first = FirstWeights()
    config = started_from(taught, model=replace(TINY.model, plan=LoopPlan.parse(plan)))
    train(config, tmp_path / "run", CPU, callbacks=[first])
    best = Run.load(taught).load_model("best").state_dict()
    assert first.weights.keys() == best.keys()
    assert all(torch.equal(first.weights[name], best[name]) for name in best)


def with_plan(config: TrainConfig, plan: str) -> TrainConfig:
    return replace(config, model=replace(config.model, plan=LoopPlan.parse(plan)))


def test_a_looped_model_starts_from_the_mean_of_the_layers_it_stands_for(tmp_path: Path) -> None:
    train(with_plan(TINY, "4x1"), tmp_path / "deep", CPU)
    first = FirstWeights()
    train(with_plan(started_from(tmp_path / "deep"), "2x2"), tmp_path / "run", CPU, callbacks=[first])
    deep = Run.load(tmp_path / "deep").load_model("best").state_dict()
    for name, weights in first.weights.items():
        layers = [name.replace(f"layers.{i}", f"layers.{i + 2}") for i in range(2) if f"layers.{i}." in name]
        expected = (deep[name] + deep[layers[0]]) / 2 if layers else deep[name]
        assert torch.allclose(weights, expected, atol=1e-7), name


@pytest.mark.parametrize("plan", ["3x1", "1x3", "1x(1,3)"])
def test_other_plans_are_not_averaged(plan: str, tmp_path: Path) -> None:
    train(with_plan(TINY, "4x1"), tmp_path / "deep", CPU)
    with pytest.raises(RunError, match=r"^start\.run=.* there, and missing in this run's model"):
        train(with_plan(started_from(tmp_path / "deep"), plan), tmp_path / "run", CPU)


def test_the_config_names_the_weights(taught: Path, tmp_path: Path) -> None:
    run = finished(started_from(taught, steps=6), tmp_path / "run")
    assert read_config(run / "config.json").start == StartConfig(str(taught), weights_of(taught))


def test_which_weights_is_part_of_a_run_and_where_they_lie_is_not() -> None:
    here, there = (replace(TINY, start=StartConfig(place, "a" * 64)) for place in ("here", "there"))
    others = replace(TINY, start=StartConfig("here", "b" * 64))
    assert from_json(to_json(here)) == here
    assert fingerprint(here) == fingerprint(there) != fingerprint(others)
    assert not differences(here, there)
    assert fingerprint(here) != fingerprint(TINY)
    assert differences(here, others) == {"start.weights": ("a" * 64, "b" * 64)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "strike", [*({"step": n} for n in (1, 9)), *({"file_operation": n} for n in (4, 8, 12, 16, 24))]
)
def test_a_run_killed_and_started_again_is_one_never_killed(
    strike: dict[str, int], taught: Path, tmp_path: Path
) -> None:
    config = started_from(taught)
    unbroken = finished(config, tmp_path / "unbroken")
    killed = Process(config, tmp_path / "killed", strike=Strike(signal.SIGKILL, **strike)).wait()
    assert killed.exitcode == -signal.SIGKILL
    assert_same(finished(config, tmp_path / "killed"), unbroken)


@pytest.mark.slow
def test_once_it_has_begun_the_other_run_is_not_needed(taught: Path, tmp_path: Path) -> None:
    config = started_from(shutil.copytree(taught, tmp_path / "taught"))
    unbroken = finished(config, tmp_path / "unbroken")
    Process(config, tmp_path / "run", strike=Strike(signal.SIGKILL, step=1)).wait()
    shutil.rmtree(tmp_path / "taught")
    again = shutil.copytree(tmp_path / "run", tmp_path / "again")
    otherwise_written = replace(config, start=StartConfig(str(tmp_path / "x" / ".." / "taught")))
    assert_same(finished(otherwise_written, tmp_path / "run"), unbroken)
    assert main(["train", "--from", str(again / "config.json"), "--device", "cpu"]) == 0
    assert_same(again, unbroken)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ("2x2", "starts from the weights of step 6 of "),
        ("1x2", "starts from the mean of the 2 blocks in the weights of"),
    ],
)
def test_what_a_run_starts_from_is_told(
    plan: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    growing = replace(with_plan(TINY, "4x1"), stacking=StackingConfig(block=2, grow_at=(18,)))
    half = stopped(growing, tmp_path / "half", step=6)  # with 2 of the 4 layers
    train(with_plan(TINY, plan), tmp_path / "begun", CPU)
    config = tmp_path / "begun" / "config.json"
    assert main(["train", "--from", str(config), "--start.run", str(half), "--run", str(tmp_path / "run")]) == 0
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_goes_on_from_the_weights_it_began_with(taught: Path, tmp_path: Path) -> None:
    source = stopped(TINY, tmp_path / "source", step=9)  # whose best checkpoint will be another one
    config = started_from(source)
    unbroken = finished(config, tmp_path / "unbroken")
    run = stopped(config, tmp_path / "run", step=9)
    finished(TINY, source)
    assert_same(finished(config, run), unbroken)


def test_weights_that_are_gone_are_not_replaced_by_others(taught: Path, tmp_path: Path) -> None:
    config = replace(started_from(taught), start=StartConfig(str(taught), "a" * 64))
    with pytest.raises(
        RunError, match=r"^start\.run=.*: it does not have, or no longer has, the weights that the config"
    ):
        train(config, tmp_path / "run", CPU)
    with pytest.raises(RunError, match=r"^start\.run: which run has the weights with SHA-256 aaaaaaaaaaaaaaaa…\? Give"):
        train(replace(config, start=StartConfig("", "a" * 64)), tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()


def test_weights_are_found_beside_a_checkpoint_that_is_damaged(taught: Path, tmp_path: Path) -> None:
    source, named = shutil.copytree(taught, tmp_path / "taught"), weights_of(taught)
    (source / "checkpoints" / "step-1").mkdir()
    first = FirstWeights()
    config = tiny(start=StartConfig(str(source), named), seed=7)
    train(config, tmp_path / "run", CPU, callbacks=[first])
    assert all(
        torch.equal(first.weights[name], one) for name, one in Run.load(taught).load_model().state_dict().items()
    )


def damage(run: Path) -> None:
    loaded = Run.load(run)
    path = loaded.checkpoints / name_of(loaded.find("best").step) / WEIGHTS
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize(
    ("change", "spoil", "message"),
    [
        (
            {"model": replace(TINY.model, d_ff=24)},
            None,
            r"^start\.run=.*\.down.* is \[8, 16\] there, and \[8, 24\]",
        ),
        ({"model": replace(TINY.model, plan=LoopPlan.parse("2x2"))}, None, r"is missing there, and \["),
        ({"model": replace(TINY.model, biases="all")}, None, "bias is missing there, and "),
        ({}, damage, r"weights\.safetensors has changed since it was written"),
        ({}, lambda run: shutil.rmtree(run / "checkpoints"), "has no checkpoint yet"),
        ({}, shutil.rmtree, r"^start\.run=.*config\.json: no such file"),
    ],
    ids=["sizes", "layers", "biases", "damaged", "untrained", "not there"],
)
def test_what_cannot_be_started_from_is_told_before_anything_is_written(
    change: dict[str, Any], spoil: Callable[[Path], None] | None, message: str, taught: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(taught, tmp_path / "taught")
    if spoil:
        spoil(source)
    before = snapshot(tmp_path)
    with pytest.raises(RunError, match=message):
        train(started_from(source, **change), tmp_path / "run", CPU)
    assert snapshot(tmp_path) == before


def test_weights_that_are_named_and_damaged_are_told_to_be(taught: Path, tmp_path: Path) -> None:
    source, named = shutil.copytree(taught, tmp_path / "taught"), weights_of(taught)
    damage(source)
    with pytest.raises(RunError, match=r"^start\.run=.*weights\.safetensors has changed since it was written"):
        train(tiny(start=StartConfig(str(source), named)), tmp_path / "run", CPU)


def test_text_files_are_prepared_with_the_tokenizer_of_the_weights(tmp_path: Path) -> None:
    train(tiny_text(), tmp_path / "first", CPU)
    for number in range(9):
        (tmp_path / f"text-{number}.txt").write_text(f"It is text number {number}, and another one.\n" * 20)
    start = StartConfig(str(tmp_path / "first"))
    config = tiny_text(data=str(tmp_path / "text-*.txt"), start=start)
    train(config, tmp_path / "second", CPU)
    tokenizers = [(tmp_path / run / "tokenizer.json").read_text() for run in ("first", "second")]
    assert tokenizers[0] == tokenizers[1]
    first, second = (read_config(tmp_path / run / "config.json").source for run in ("first", "second"))
    assert isinstance(first, Text)
    assert isinstance(second, Text)
    assert first.end_of_document == second.end_of_document
    with pytest.raises(RunError, match=r"^start\.run=.*nowhere"):
        train(replace(config, start=StartConfig(str(tmp_path / "nowhere"))), tmp_path / "third", CPU)
    assert not (tmp_path / "third-data").exists()


def test_what_changes_no_token_of_a_tokenizer_does_not_matter(tmp_path: Path) -> None:
    train(tiny_text(), tmp_path / "first", CPU)
    path = tmp_path / "first" / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": {"type": "ByteLevel"}}))
    train(tiny_text(start=StartConfig(str(tmp_path / "first"))), tmp_path / "second", CPU)


def test_a_language_model_goes_on_with_other_text_by_its_own_tokenizer(tmp_path: Path) -> None:
    train(tiny_text(), tmp_path / "first", CPU)
    first, start = FirstWeights(), StartConfig(str(tmp_path / "first"))
    train(tiny_text(data=str(text_directory(seed=1)), start=start), tmp_path / "second", CPU, callbacks=[first])
    best = Run.load(tmp_path / "first").load_model("best").state_dict()
    assert all(torch.equal(first.weights[name], best[name]) for name in best)


def test_text_by_another_tokenizer_is_refused(tmp_path: Path) -> None:
    train(tiny_text(), tmp_path / "first", CPU)
    other = prepared(tmp_path)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    (one, first), (another, second) = list(vocabulary.items())[-2:]
    vocabulary |= {one: second, another: first}  # as many tokens, two of which mean something else
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    source, by = (str(tmp_path / "text.jsonl"),), str(tmp_path / "tokenizer.json")
    prepare(Settings(source, by, validation=0.2, test=0.2), tmp_path / "other", workers=1)
    config = tiny_text(data=str(tmp_path / "other"), start=StartConfig(str(tmp_path / "first")))
    with pytest.raises(RunError, match=r"^start\.run=.*another tokenizer than this text\. Prepare"):
        train(config, tmp_path / "second", CPU)
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("given", [["--start.run", "second"], ["--start.run=second"]])
def test_a_run_that_was_started_can_be_started_from(
    given: list[str], taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    finished(started_from(taught), tmp_path / "second")
    assert main(["train", "--from", "second/config.json", *given, "--run", "third", "--device", "cpu"]) == 0
    assert read_config(tmp_path / "third" / "config.json").start == StartConfig(
        "second", weights_of(tmp_path / "second")
    )


def test_a_config_that_names_no_sha_256_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^start\.weights=abc: allowed is a SHA-256, or none$"):
        StartConfig("runs/a", "abc")


def test_a_model_goes_on_learning_where_it_stood(tmp_path: Path) -> None:
    """Of the task it has learned, it loses nothing at a small rate; from random weights as few steps teach nothing."""
    long = replace(TINY, optim=AdamWConfig(lr=0.02, warmup_steps=5), steps=400, batch_size=32, eval_every=100)
    long = replace(long, eval_examples=256, test_examples=256)
    learned = train(long, tmp_path / "long", CPU).result
    short = replace(long, steps=5, eval_every=5, seed=1, optim=AdamWConfig(lr=1e-4, warmup_steps=1))
    further = train(replace(short, start=StartConfig(str(tmp_path / "long"))), tmp_path / "further", CPU).result
    afresh = train(short, tmp_path / "afresh", CPU).result
    assert learned["loss"] < 0.5 * afresh["loss"]
    assert abs(further["loss"] - learned["loss"]) < 0.1 * learned["loss"]
