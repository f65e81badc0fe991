"""loopt runs: lists every run and how far it is, compares, and deletes only what can be made again."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import loopt
import tiny_runs
from command_line import run
from loopt import InputError
from loopt.runs import Run, checkpoint, codec
from loopt.training import Session, train

QUIET = Session(device="cpu", progress=False)
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def once_trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that is finished, one that a time limit stopped, and a folder that is no run."""
    folder = tmp_path_factory.mktemp("trained")
    train(tiny_runs.TINY, folder / "a" / "done", QUIET)
    slower = replace(tiny_runs.TINY, seed=3, optim=replace(tiny_runs.TINY.optim, lr=0.02))
    for _ in range(8):
        train(slower, folder / "half", replace(QUIET, time_limit=0))
    (folder / "model" / "checkpoints" / "step-1").mkdir(parents=True)
    (folder / "model" / "config.json").write_text('{"model_type": "gpt2"}')
    return folder


@pytest.fixture
def trained(once_trained: Path, tmp_path: Path) -> Path:
    """A copy of them, to do with as one likes."""
    return Path(shutil.copytree(once_trained, tmp_path / "runs"))


def steps(folder: Path) -> list[int]:
    return checkpoint.steps_in(folder / "checkpoints")


def test_runs_are_listed(trained: Path, capsys: Captured) -> None:
    assert run("runs") == 0
    shown = capsys.readouterr().out
    rows = re.findall(r"│ (\S+) +│ +(\S+) │ +phop │ +1x2 │ +(\d+ of \d+) │ +(.*?) │ +(\S+B) │ +(.+?) │", shown)
    best = json.loads((trained / "a" / "done" / "result.json").read_text())["best_validation"]
    assert [row[:4] for row in rows] == [
        ("runs/a/done", "finished", "24 of 24", best),
        ("runs/half", "stopped", "8 of 24", rows[1][3]),
    ]
    assert rows[1][3].startswith("accuracy ")
    assert "2 runs, " in shown
    assert "gpt2" not in shown
    assert "runs/model" not in shown


def test_where_the_screen_is_narrow_runs_are_told_apart(
    trained: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "a-name-that-says-what-was-tried"
    (trained / "half").rename(trained / long)
    monkeypatch.setenv("COLUMNS", "80")
    assert run("runs") == 0
    shown = capsys.readouterr().out
    assert f"runs/{long}" in shown
    assert "runs/a/done" in shown


def test_a_run_of_a_task_that_is_not_imported_is_named_with_what_to_import(trained: Path, capsys: Captured) -> None:
    file = trained / "half" / "config.json"
    config = json.loads(file.read_text())
    config["source"] |= {"name": "mine", codec.IMPORT: "my_task.py"}
    file.write_text(json.dumps(config))
    assert run("runs") == 0
    shown = capsys.readouterr().out
    assert "1 runs, " in shown
    assert re.search(r"^not listed: runs/half/config.json: .*--import my_task.py", shown, re.MULTILINE)
    assert run("runs", "clean", "--finished", "--yes") == 0
    assert re.search(
        r"^left alone: runs/half/config.json: .*--import my_task.py", capsys.readouterr().out, re.MULTILINE
    )
    assert steps(trained / "half")


@pytest.fixture
def nobody(trained: Path) -> Iterator[None]:
    """Runs that may be read and not written, also where tests run as root."""
    moved = Path(tempfile.mkdtemp(prefix="loopt-read-only-"))
    shutil.move(trained, moved / "runs")
    for path in [moved, *moved.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before, user = Path.cwd(), os.geteuid()
    os.chdir(moved)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(0)
        os.chdir(before)
        for path in [moved, *moved.rglob("*")]:
            path.chmod(0o755)
        shutil.rmtree(moved)


@pytest.mark.usefixtures("nobody")
def test_runs_that_may_only_be_read_are_listed(capsys: Captured) -> None:
    with pytest.raises(PermissionError):
        (Path("runs") / "half" / ".lock").open("ab")
    assert run("runs") == 0
    assert "2 runs, " in capsys.readouterr().out
    assert run("runs", "clean", "--finished", "--yes") == 2
    assert "cannot delete checkpoints of runs/a/done: Permission denied" in capsys.readouterr().err


def test_a_run_that_is_trained_is_said_to_be_and_left_alone(trained: Path, capsys: Captured) -> None:
    config = Run.load(trained / "half").config
    held = Run.start(trained / "half", config)
    try:
        before = tiny_runs.snapshot(trained / "half")
        assert run("runs", "list", "runs") == 0
        assert re.search(r"runs/half +│ +training", capsys.readouterr().out)
        assert run("runs", "clean", "--yes") == 0
        assert "runs/half" not in capsys.readouterr().out
        assert tiny_runs.snapshot(trained / "half") == before
    finally:
        held.close()


def test_a_folder_without_runs_says_how_to_get_one(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "runs").mkdir()
    assert run("runs") == 0
    assert capsys.readouterr().out == "runs: no runs; `loopt train phop-cpu` trains one\n"


def test_runs_are_compared(trained: Path, capsys: Captured) -> None:
    assert run("runs", "compare", "runs/a/done", "runs/half") == 0
    shown = capsys.readouterr().out
    assert re.search(r"│ optim.lr +│ +0.01 │ +0.02 │", shown)
    assert re.search(r"│ seed +│ +0 │ +3 │", shown)
    assert len(re.findall(r"^│ (optim|seed|model|source|steps)", shown, re.MULTILINE)) == 2
    curve = {
        e["step"]: e["validation_accuracy"]
        for e in tiny_runs.metrics(trained / "a" / "done")
        if "validation_accuracy" in e
    }
    for step, value in curve.items():
        assert re.search(rf"│ {step} +│ +{value:.4f} │", shown), step
    accuracy = json.loads((trained / "a" / "done" / "result.json").read_text())["accuracy"]
    assert re.search(rf"│ accuracy +│ +{accuracy:.4f} │ +│", shown)


def test_the_same_settings_are_said_to_be(trained: Path, capsys: Captured) -> None:
    assert run("runs", "compare", "runs/a/done", "runs/a/done") == 0
    assert capsys.readouterr().out.startswith("All settings are the same\n")


def test_cleaning_keeps_the_best_the_last_and_what_is_kept(trained: Path, capsys: Captured) -> None:
    done, half = trained / "a" / "done", trained / "half"
    best = {Run.load(path).find("best").step for path in (done,)}
    before, elsewhere = steps(half), tiny_runs.snapshot(trained / "model")
    assert run("runs", "clean") == 0
    assert "would delete" in capsys.readouterr().out
    assert steps(half) == before
    assert run("runs", "clean", "--yes") == 0
    assert re.search(r"deleted \d+ checkpoints, ", capsys.readouterr().out)
    assert set(steps(done)) == best | {24}
    assert set(steps(half)) == {Run.load(half).find("best").step, before[-1]} < set(before)
    assert tiny_runs.snapshot(trained / "model") == elsewhere
    assert (trained / "model" / "checkpoints" / "step-1").exists()
    for path in (done, half):
        loopt.load(path)
        loopt.load(path, checkpoint="last")
    assert train(Run.load(half).config, half, QUIET).finished  # what is left can be resumed


def test_checkpoints_kept_for_good_stay(tmp_path: Path, capsys: Captured) -> None:
    train(tiny_runs.TINY, tmp_path / "run", replace(QUIET, keep=(3,)))
    assert run("runs", "clean", ".", "--yes") == 0
    assert 3 in steps(tmp_path / "run")


def test_weights_of_finished_runs_go_when_asked(trained: Path, capsys: Captured) -> None:
    done, half = trained / "a" / "done", trained / "half"
    left = steps(half)
    assert run("runs", "clean", "--finished", "--yes") == 0
    assert steps(done) == []
    assert steps(half)[-1] == left[-1]
    assert (Run.load(done).read_result() or {})["step"] == 24
    assert Run.load(done).read_metrics()
    assert run("runs", "compare", "runs/a/done", "runs/half") == 0


def test_a_run_is_loaded_with_any_number_of_loops(trained: Path) -> None:
    ids = torch.randint(3, (2, 8), generator=torch.Generator().manual_seed(0))
    model, deeper = loopt.load("runs/a/done"), loopt.load("runs/a/done", loops=5, device="cpu", checkpoint="best")
    assert torch.equal(deeper(ids), model(ids, loops=5))
    assert torch.equal(deeper(ids, loops=2), model(ids))
    assert not torch.equal(deeper(ids), model(ids))
    assert len(deeper.thoughts(ids)) == 5


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"checkpoint": "worst"}, "checkpoint=worst: allowed is best | last | "),
        ({"device": "abacus"}, "device=abacus: not available here; allowed is auto | "),
        ({"loops": 0}, "loops must be 1 or more"),
        ({"loops": 2.5}, "loops=2.5; loops must be 1 or more"),
        ({"loops": "a"}, "loops='a'; loops must be 1 or more"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_the_words_of_the_commands(
    settings: dict[str, object], told: str, trained: Path
) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        loopt.load(trained / "half", **settings)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="directory=None: allowed is the path of a run"):
        loopt.load(None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"nowhere/config.json: no such file.*`loopt runs` lists runs"):
        loopt.load("nowhere")
