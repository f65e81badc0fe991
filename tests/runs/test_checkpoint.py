"""Checkpoints are complete or absent, and one that is not what it should be is refused, not loaded."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import loopt
from loopt import InputError
from loopt.errors import RunError
from loopt.files import signed
from loopt.runs import CheckpointError, Run, checkpoint
from loopt.training import train
from tiny_runs import CPU, TINY, Child, assert_same, finished, last_step, snapshot, stopped, tensors, tiny

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(TINY, tmp_path_factory.mktemp("runs") / "unbroken")


@pytest.fixture(scope="module")
def half_done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped(TINY, tmp_path_factory.mktemp("runs") / "half", 14)


@pytest.fixture
def run(half_done: Path, tmp_path: Path) -> Path:
    """A run with checkpoints of steps 12 and 14 and perhaps an earlier, best one."""
    return Path(shutil.copytree(half_done, tmp_path / "run"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)


def resign(folder: Path, **changes: Any) -> None:
    """Writes another state, of which the checksum is right; ``...`` leaves a field out."""
    state = json.loads((folder / STATE).read_text()) | changes
    kept = {name: value for name, value in state.items() if name != "sha256" and value is not ...}
    (folder / STATE).write_text(json.dumps(signed(kept)))


def rewrite(folder: Path, **changes: Any) -> None:
    """Writes another state, of which all checksums are right."""
    contents = {name: (folder / name).read_bytes() for name in (WEIGHTS, OPTIMIZER)}
    files = {name: {"bytes": len(c), "sha256": hashlib.sha256(c).hexdigest()} for name, c in contents.items()}
    resign(folder, files=files, **changes)


def reshape(folder: Path, file: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    values = load_file(folder / file)
    name = next(name for name in sorted(values) if name.startswith("readout_projection.weight"))
    save_file(values | {name: change(values[name]).contiguous()}, folder / file)
    rewrite(folder)


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def drop_key(folder: Path) -> None:
    state = json.loads((folder / STATE).read_text())
    del state["files"]
    (folder / STATE).write_text(json.dumps(state))


def change_digit(folder: Path) -> None:
    state = json.loads((folder / STATE).read_text())
    (folder / STATE).write_text(json.dumps(state | {"seconds": state["seconds"] + 1}))


def copy_in(folder: Path) -> None:
    other = stopped(tiny(seed=5), folder.parent.parent.parent / "other", 14)
    shutil.rmtree(folder)
    shutil.copytree(other / "checkpoints" / folder.name, folder)


def copy_older(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("step-12"), folder)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "weights truncated": (lambda folder: truncate(folder / WEIGHTS), rf"{WEIGHTS} has \d+ bytes where \d+ were"),
    "optimizer truncated": (lambda folder: truncate(folder / OPTIMIZER), rf"{OPTIMIZER} has \d+ bytes where \d+ were"),
    "state truncated": (lambda folder: truncate(folder / STATE), rf"{STATE}: line \d+, column \d+: no JSON"),
    "state empty": (lambda folder: (folder / STATE).write_text(""), f"{STATE}: line 1, column 1: no JSON"),
    "state not UTF-8": (lambda folder: (folder / STATE).write_bytes(b"\xff"), f"{STATE}: byte 0 is not UTF-8"),
    "state nested": (lambda folder: (folder / STATE).write_text("[" * 100_000), f"{STATE}: nested too deep"),
    "weights missing": (lambda folder: (folder / WEIGHTS).unlink(), f"{WEIGHTS} is missing"),
    "optimizer missing": (lambda folder: (folder / OPTIMIZER).unlink(), f"{OPTIMIZER} is missing"),
    "state missing": (lambda folder: (folder / STATE).unlink(), f"{STATE} is missing"),
    "all missing": (empty, f"{STATE} is missing"),
    "weights flipped": (lambda folder: flip(folder / WEIGHTS), rf"{WEIGHTS} has changed .* \(SHA-256 differs\)"),
    "optimizer flipped": (lambda folder: flip(folder / OPTIMIZER), rf"{OPTIMIZER} has changed"),
    "state flipped": (change_digit, rf"{STATE}: not as it was written \(SHA-256 differs\)"),
    "key missing": (drop_key, rf"{STATE}: not as it was written \(SHA-256 differs\)"),
    "not an object": (lambda folder: (folder / STATE).write_text("[1]"), "format None; this version of loopt reads"),
    "nothing in it": (lambda folder: (folder / STATE).write_text("{}"), "format None; this version of loopt reads"),
    "not a number": (lambda folder: resign(folder, seconds=math.nan), f"{STATE}: NaN; allowed are finite numbers"),
    "field missing": (lambda folder: resign(folder, best=...), rf"{STATE}\.best: missing"),
    "field too many": (lambda folder: resign(folder, lr=1), rf"{STATE}\.lr: no such field"),
    "step no number": (lambda folder: resign(folder, step="14"), rf"{STATE}\.step='14': allowed is a value of type"),
    "best no object": (lambda folder: resign(folder, best=[]), rf"{STATE}\.best=\[\]: allowed is a value of type dict"),
    "best half": (lambda folder: resign(folder, best={"step": 6}), rf"{STATE}\.best\.\w+: missing"),
    "no files": (lambda folder: resign(folder, files={}), rf"{STATE}: files=\[\]: allowed are {WEIGHTS} and"),
    "files no object": (lambda folder: resign(folder, files=3), rf"{STATE}\.files=3: allowed is a value of type dict"),
    "file half": (
        lambda folder: resign(folder, files={WEIGHTS: {"bytes": 1}, OPTIMIZER: {}}),
        rf"{STATE}\.files\.{WEIGHTS}\.sha256: missing",
    ),
    "another format": (lambda folder: rewrite(folder, format=1), "format 1; this version of loopt reads format 2"),
    "another step": (copy_older, "holds step 12"),
    "another config": (copy_in, r"belongs to another config \(\w+, this run's is \w+\)"),
    "weights of another shape": (
        lambda folder: reshape(folder, WEIGHTS, lambda weights: weights[:-1]),
        r"readout_projection\.weight is float32 \[3, 8\], the model's is float32 \[4, 8\]",
    ),
    "weights of another type": (
        lambda folder: reshape(folder, WEIGHTS, torch.Tensor.half),
        r"readout_projection\.weight is float16 \[4, 8\], the model's is float32 \[4, 8\]",
    ),
    "optimizer of another shape": (
        lambda folder: reshape(folder, OPTIMIZER, lambda state: state[:-1]),
        r"optimizer state readout_projection\.weight/exp_avg: found float32 \[3, 8\], expected float32 \[4, 8\]",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_checkpoint_is_refused(
    damage: Callable[[Path], None], reason: str, run: Path, unbroken: Path
) -> None:
    folder = run / "checkpoints" / "step-14"
    damage(folder)
    before = snapshot(run)
    with pytest.raises(CheckpointError) as error:
        train(TINY, run, CPU)
    message = str(error.value)
    assert re.search(reason, message), message
    assert message.endswith("The newest intact one before it is of step 12: delete step-14 to resume from there")
    assert "\n" not in message
    assert snapshot(run) == before
    shutil.rmtree(folder)
    assert train(TINY, run, CPU).finished
    assert_same(run, unbroken)


def test_the_newest_intact_one_may_be_further_back(run: Path) -> None:
    for step in (12, 14):
        truncate(run / "checkpoints" / f"step-{step}" / WEIGHTS)
    shutil.rmtree(run / "checkpoints" / "step-6", ignore_errors=True)
    with pytest.raises(CheckpointError, match=r"No other one is intact: begin again in another directory$"):
        train(TINY, run, CPU)


def test_beginning_again(run: Path, unbroken: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    assert train(TINY, run, CPU).finished
    assert_same(run, unbroken)


@pytest.fixture(scope="module")
def best_long_ago(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 9 and 11, of which the best is that of step 1."""
    run = stopped(tiny(eval_every=1), tmp_path_factory.mktemp("runs") / "run", 11)
    best = Run.load(run).find("last").best
    assert best
    assert best.step < checkpoint.steps_in(run / "checkpoints")[-2]
    return run


def test_a_damaged_best_checkpoint_is_refused_when_the_run_resumes(best_long_ago: Path, tmp_path: Path) -> None:
    """Not in the end, when all the work is done; and nobody is told to delete what is intact."""
    run = Path(shutil.copytree(best_long_ago, tmp_path / "run"))
    best = Run.load(run).find("best").step
    flip(run / "checkpoints" / f"step-{best}" / WEIGHTS)
    before = snapshot(run)
    with pytest.raises(CheckpointError) as error:
        train(tiny(eval_every=1), run, CPU)
    message = str(error.value)
    assert re.search(rf"step-{best}: {WEIGHTS} has changed", message)
    assert message.endswith(
        f"It was the best so far. That of step 11 is intact: delete step-{best} to resume from there, and to have the "
        "best of what follows in the end"
    )
    assert snapshot(run) == before
    with pytest.raises(CheckpointError, match=f"{WEIGHTS} has changed"):
        Run.load(run).load_model("best")
    shutil.rmtree(run / "checkpoints" / f"step-{best}")
    outcome = train(tiny(eval_every=1), run, CPU)
    assert outcome.finished
    assert outcome.result["best_step"] > 11
    assert Run.load(run).find("best").step == outcome.result["best_step"]


def test_without_its_best_a_run_at_its_end_measures_the_last(unbroken: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(unbroken, tmp_path / "run"))
    best = Run.load(run).find("best").step
    assert best < 24
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / f"step-{best}")
    result = train(TINY, run, CPU).result
    assert (result["best_step"], result["best_validation"]) == (24, "")
    assert Run.load(run).find("best").step == 24


def test_an_older_damaged_checkpoint_is_no_reason_to_delete_anything(best_long_ago: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(best_long_ago, tmp_path / "run"))
    older = checkpoint.steps_in(run / "checkpoints")[-2]
    flip(run / "checkpoints" / f"step-{older}" / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"That of step 11 is intact, and training resumes from there$"):
        Run.load(run).find(older)


def test_going_back_finds_the_best_checkpoint_it_knows_of(tmp_path: Path) -> None:
    """The best of the last checkpoint but one must outlive a better one, which may turn out to be damaged."""
    for step in range(1, 12):
        train(tiny(eval_every=1), tmp_path, replace(CPU, time_limit=0))
        run = Run.load(tmp_path)
        for kept in checkpoint.steps_in(run.checkpoints)[-2:]:
            best = run.find(kept).best
            assert best
            assert run.find(best.step).step == best.step <= kept <= step
    assert len(checkpoint.steps_in(run.checkpoints)) <= 4


def test_readers_refuse_damage_too(run: Path) -> None:
    reshape(run / "checkpoints" / "step-14", WEIGHTS, lambda weights: weights[:-1])
    with pytest.raises(CheckpointError, match=r"the model's is .* delete step-14 to resume from there"):
        Run.load(run).load_model("last")


def test_what_is_saved_is_what_is_loaded(run: Path) -> None:
    weights = Run.load(run).load_model("last").state_dict()
    saved = tensors(run, 14)
    assert all(torch.equal(saved[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("content", [b"", b'{"step": 2}\n', None])
def test_metrics_that_the_checkpoint_has_seen_must_be_there(content: bytes | None, run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    if content is not None:
        (run / "metrics.jsonl").write_bytes(content)
    with pytest.raises(RunError, match=r"metrics.jsonl: not as it was at the checkpoint of step 14"):
        train(TINY, run, CPU)


def test_metrics_that_were_edited_are_not_believed(run: Path) -> None:
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"step": 2', b'"step": 1', 1))
    for read in (lambda: train(TINY, run, CPU), Run.load(run).read_metrics):
        with pytest.raises(RunError, match=r"metrics.jsonl: not as it was"):
            read()


def test_a_line_still_being_written_is_not_read(run: Path) -> None:
    complete = Run.load(run).read_metrics()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 15, "lo')
    assert Run.load(run).read_metrics() == complete
    assert complete[-1]["step"] == 14


@pytest.mark.parametrize("which", [pytest.param(10**5000, id="5000 digits"), -1, 13, -(10**30), "newest", "two\nlines"])
def test_a_checkpoint_that_is_not_there(which: Any, run: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        loopt.load(run, checkpoint=which)
    assert re.fullmatch(rf"checkpoint=.+: allowed is best \| last \| .*12 \| 14, which {run} has", str(error.value))
    assert len(str(error.value)) < 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "doing"),
    [
        (100, "write the run"),
        (1500, r"write .*metrics\.jsonl"),
        (4000, "save the checkpoint .*step-24"),  # enough for the weights, not for the optimizer
    ],
)
def test_a_full_disk_at_the_beginning(limit: int, doing: str, tmp_path: Path) -> None:
    config = tiny(eval_every=24, log_every=1 if limit == 1500 else 8)
    child = Child(config, tmp_path / "run", file_limit=limit).wait()
    assert child.exitcode == 0
    assert re.match(f"cannot {doing}", child.outcome["error"])
    assert "File too large" in child.outcome["error"]
    assert "\n" not in child.outcome["error"]
    assert not list(tmp_path.glob("run/checkpoints/*"))
    assert_same(finished(config, tmp_path / "run"), finished(config, tmp_path / "unbroken"))


def test_a_full_disk_later_on(run: Path, unbroken: Path) -> None:
    before = snapshot(run / "checkpoints")
    child = Child(TINY, run, file_limit=5000).wait()
    assert re.match("cannot save the checkpoint .*step-18", child.outcome["error"])
    assert child.outcome["error"].endswith("the checkpoint of step 14 is intact")
    assert snapshot(run / "checkpoints") == before
    assert last_step(run) == 14
    assert_same(finished(TINY, run), unbroken)


@pytest.mark.parametrize("place", ["file/run", "file", "/proc/loopt-run", "/proc/self/fd/run"])
def test_a_directory_that_cannot_be_written(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError) as error:
        train(TINY, tmp_path / place, CPU)
    assert str(error.value).startswith(f"cannot write the run {tmp_path / place}: ")
    assert "\n" not in str(error.value)


def test_nothing_of_a_run_is_pickled(run: Path) -> None:
    """Loading a pickle runs code that is in it."""
    for folder in (run / "checkpoints").iterdir():
        assert {path.name for path in folder.iterdir()} == {WEIGHTS, OPTIMIZER, STATE}
    for room in ("runs", "training", "evaluation"):
        for path in (Path(loopt.__file__).parent / room).rglob("*.py"):
            assert not re.search(r"torch\.(load|save)\(|^\s*(import|from) pickle", path.read_text(), re.M), path


def test_run_errors_are_meant_for_the_user() -> None:
    assert issubclass(CheckpointError, RunError)
    assert issubclass(RunError, InputError)
