"""A run's directory: what is not this run's is neither believed nor written to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopt.errors import InputError, RunError
from loopt.files import signed
from loopt.runs import Run
from loopt.runs.run import BusyError
from loopt.training import Callback, train
from loopt.training.task_learner import TaskLearner
from loopt.training.trainer import Trainer
from tiny_runs import CPU, TINY, Child, assert_same, finished, snapshot, stopped, tiny


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(TINY, tmp_path_factory.mktemp("runs") / "unbroken")


@pytest.fixture
def run(unbroken: Path, tmp_path: Path) -> Path:
    """A finished run."""
    return Path(shutil.copytree(unbroken, tmp_path / "run"))


def change(path: Path, **changes: Any) -> None:
    """Changes fields of a file, and not its checksum."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def resign(path: Path, **changes: Any) -> None:
    """Writes another file, of which the checksum is right; ``...`` leaves a field out."""
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(signed({k: v for k, v in data.items() if k != "sha256" and v is not ...})))


RESULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "edited": (lambda path: change(path, accuracy=0.9999), r"not as it was written \(SHA-256 differs\)"),
    "another run's": (
        lambda path: shutil.copy(finished(tiny(seed=7), path.parent.parent / "other") / "result.json", path),
        r"belongs to another config \(\w{16}, this run's is \w{16}\)",
    ),
    "without a config": (lambda path: resign(path, config=...), r"belongs to another config \(None, this run's is"),
    "without a step": (lambda path: resign(path, step=...), "step=None: allowed is a value of type int"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:99]), r"line \d+, column \d+: no JSON"),
    "empty": (lambda path: path.write_text(""), "line 1, column 1: no JSON"),
    "an empty object": (lambda path: path.write_text("{}"), "not as it was written"),
    "a list": (lambda path: path.write_text("[]"), "not as it was written"),
    "not a number": (lambda path: path.write_text('{"accuracy": NaN}'), "NaN; allowed are finite numbers"),
    "nested": (lambda path: path.write_text("[" * 100_000), "nested too deep"),
    "not text": (lambda path: path.write_bytes(b"\xff\xfe"), "byte 0 is not UTF-8"),
}


@pytest.mark.parametrize(("damage", "reason"), RESULTS.values(), ids=RESULTS.keys())
def test_a_result_that_is_not_this_runs_is_not_believed(
    damage: Callable[[Path], Any], reason: str, run: Path, unbroken: Path
) -> None:
    path = run / "result.json"
    damage(path)
    for read in (lambda: train(TINY, run, CPU), Run.load(run).read_result):
        with pytest.raises(RunError, match=rf"^{path}: {reason}.*; delete it to measure the run again$") as error:
            read()
        assert "\n" not in str(error.value)
    path.unlink()
    assert train(TINY, run, CPU).finished
    assert_same(run, unbroken)


def test_a_result_is_read_as_it_was_given(run: Path) -> None:
    result = Run.load(run).read_result()
    written = json.loads((run / "result.json").read_text())
    assert written == {**(result or {}), "sha256": written["sha256"]}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "line 1, column 2: no JSON"),
        (b"", "line 1, column 1: no JSON"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b'{"step": 2, "seconds": NaN}', "NaN; allowed are finite numbers"),
        *(
            (line, "allowed is an object with step, seconds and other figures")
            for line in (b"[1]", b"null", b"{}", b'{"step": "2", "seconds": 1.0}', b'{"step": 2, "seconds": null}')
        ),
    ],
)
def test_a_line_of_the_metrics_that_is_none_is_told(line: bytes, reason: str, run: Path) -> None:
    path = run / "metrics.jsonl"
    (run / "result.json").unlink()  # of a run that is finished, nothing may follow
    lines = path.read_bytes().splitlines()
    with path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(RunError) as error:
        Run.load(run).read_metrics()
    assert str(error.value).startswith(f"{path}:{len(lines) + 1}: {reason}")
    assert "\n" not in str(error.value)


def test_a_finished_run_has_no_more_metrics_than_it_wrote(run: Path) -> None:
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(RunError, match=r"metrics.jsonl: more than was written before the run was finished"):
        Run.load(run).read_metrics()


def test_numbers_that_are_none_are_read_back_as_nothing(tmp_path: Path) -> None:
    run = Run.start(tmp_path / "run", TINY.resolved())
    run.log({"step": 1, "seconds": 0.5, "cosine qkv": float("nan"), "loss": float("inf")})
    run.write_result({"step": 1, "config": run.fingerprint, "accuracies": {"phop": float("-inf")}, "loss": 1.0})
    run.close()
    assert run.read_metrics() == [{"step": 1, "seconds": 0.5, "cosine qkv": None, "loss": None}]
    assert run.read_result() == {"step": 1, "config": run.fingerprint, "accuracies": {"phop": None}, "loss": 1.0}


def test_a_test_loss_that_is_no_number_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = TaskLearner.test
    monkeypatch.setattr(TaskLearner, "test", lambda learner: measure(learner) | {"loss": float("nan")})
    with pytest.raises(RunError, match=r"diverged at step \d+ \(test loss nan\)"):
        train(TINY, tmp_path / "run", CPU)
    assert Run.load(tmp_path / "run").read_result() is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "line 1, column 2: no JSON"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b"[" * 100_000, "nested too deep"),
        (b"[]", r"config=[]: allowed is a value of type dict"),
        (b"{}", "config."),
        (b'{"steps": NaN}', "NaN; allowed are finite numbers"),
        (b'{"steps": 1' + b"0" * 5000 + b"}", "a number of 5001 digits"),
        (b'{"two\\nlines": 1}', r"config.'two\nlines': no such field"),
    ],
    ids=["cut", "not text", "nested", "a list", "empty", "NaN", "long number", "two lines"],
)
def test_a_damaged_config_is_told_with_its_file(content: bytes, reason: str, run: Path) -> None:
    (run / "config.json").write_bytes(content)
    for read in (lambda: train(TINY, run, CPU), lambda: Run.load(run)):
        with pytest.raises(InputError) as error:
            read()
        assert str(error.value).startswith(f"{run / 'config.json'}: {reason}")
        assert "\n" not in str(error.value)


def test_a_config_with_a_broken_plan_is_told_in_one_line(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"model": config["model"] | {"plan": "4y6"}}))
    with pytest.raises(InputError, match=r"config\.model\.plan: plan '4y6'") as error:
        Run.load(run)
    assert "\n" not in str(error.value)


class At(Callback):
    """Does something to the run after a step, once."""

    def __init__(self, step: int, do: Callable[[Path], Any]) -> None:
        self.step, self.do = step, do

    def stepped(self, trainer: Trainer) -> None:
        if trainer.step == self.step:
            self.do(trainer.run.directory)


class BeforeTheTest(Callback):
    """Does something to the run when all steps are done."""

    def __init__(self, do: Callable[[Path], Any]) -> None:
        self.do = do

    def finished(self, trainer: Trainer) -> None:
        self.do(trainer.run.directory)


def replaced(name: str) -> Callable[[Path], None]:
    def replace_file(run: Path) -> None:
        content = (run / name).read_bytes()
        (run / name).unlink()
        (run / name).write_bytes(content)

    return replace_file


def made_anew(run: Path) -> None:
    run.rename(run.with_name("moved"))
    shutil.copytree(run.with_name("moved"), run)


GONE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "deleted": (shutil.rmtree, ".lock was deleted, moved or replaced"),
    "renamed": (lambda run: run.rename(run.with_name("moved")), ".lock was deleted, moved or replaced"),
    "renamed and copied back": (made_anew, ".lock was deleted, moved or replaced"),
    "lock deleted": (lambda run: (run / ".lock").unlink(), ".lock was deleted, moved or replaced"),
    "lock replaced": (replaced(".lock"), ".lock was deleted, moved or replaced"),
    "metrics deleted": (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl was deleted, moved or replaced"),
    "metrics replaced": (replaced("metrics.jsonl"), "metrics.jsonl was deleted, moved or replaced"),
}


@pytest.mark.parametrize(("do", "reason"), GONE.values(), ids=GONE.keys())
@pytest.mark.parametrize("when", ["while it trains", "before the test"])
def test_a_run_that_is_gone_is_noticed(do: Callable[[Path], Any], reason: str, when: str, tmp_path: Path) -> None:
    run, after = tmp_path / "run", {}

    def do_and_look(directory: Path) -> None:
        do(directory)
        after.update(snapshot(tmp_path))

    callback = At(7, do_and_look) if when == "while it trains" else BeforeTheTest(do_and_look)
    with pytest.raises(RunError) as error:
        train(TINY, run, CPU, callbacks=[callback])
    assert str(error.value) == f"{run}/{reason} while the run trained: nothing more is written"
    assert snapshot(tmp_path) == after
    assert run.exists() == any(path.is_relative_to(run) for path in after)


def test_deleted_checkpoints_are_not_made_anew(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(RunError, match=r"cannot save the checkpoint .*step-12: No such file or directory"):
        train(TINY, run, CPU, callbacks=[At(7, lambda directory: shutil.rmtree(directory / "checkpoints"))])
    assert not (run / "checkpoints").exists()


def test_a_best_checkpoint_deleted_while_the_run_trains_is_missed_in_the_end(tmp_path: Path) -> None:
    class DeleteBest(Callback):
        def finished(self, trainer: Trainer) -> None:
            assert trainer.best
            shutil.rmtree(trainer.run.checkpoints / f"step-{trainer.best.step}")

    with pytest.raises(RunError, match=r"checkpoint=\d+: allowed is best \| last \|"):
        train(TINY, tmp_path / "run", CPU, callbacks=[DeleteBest()])


FOREIGN: dict[str, Callable[[Path], Any]] = {
    "metrics": lambda run: (run / "metrics.jsonl").write_text('{"step": 1, "mine": true}\n'),
    "a result": lambda run: (run / "result.json").write_text("{}"),
    "notes": lambda run: (run / "notes.txt").write_text("to do\n"),
    "a tokenizer": lambda run: (run / "tokenizer.json").write_text("{}"),
    "a checkpoint": lambda run: (run / "checkpoints" / "step-3").mkdir(parents=True),
    "checkpoints that are a file": lambda run: (run / "checkpoints").write_text(""),
    "another program's config": lambda run: (run / "config.json").write_text('{"hidden_size": 768}'),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_directory_that_is_not_a_runs_is_left_as_it_is(make: Callable[[Path], Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    make(run)
    entries, before = sorted(run.rglob("*")), snapshot(run)
    with pytest.raises(InputError, match=r"but no config\.json: choose another directory|config\.\w+: ") as error:
        train(TINY, run, CPU)
    assert str(run) in str(error.value)
    assert "\n" not in str(error.value)
    assert (sorted(run.rglob("*")), snapshot(run)) == (entries, before)


def test_a_run_that_was_killed_before_it_had_a_config_can_begin(unbroken: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / ".lock").touch()
    (run / ".config.json.tmp").write_text('{"sour')
    assert train(TINY, run, CPU).finished
    assert_same(run, unbroken)


def test_without_its_lock_a_run_is_still_trained_by_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    stopped(TINY, run, 7)
    first = Run.start(run, TINY.resolved())
    (run / "checkpoints" / ".tmp-step-8").mkdir()
    (run / ".lock").unlink()
    before = snapshot(run)
    with pytest.raises(BusyError, match=f"run {run} is being trained by another process"):
        Run.start(run, TINY.resolved())
    second = Child(TINY, run).wait()
    assert second.outcome["error"] == f"run {run} is being trained by another process"
    assert snapshot(run) == {**before, run / ".lock": snapshot(run)[run / ".lock"]}
    assert (run / "checkpoints" / ".tmp-step-8").exists(), "what the first process is writing was deleted"
    with pytest.raises(RunError, match=r"\.lock was deleted, moved or replaced"):
        first.log({"step": 8})
    first.close()
