"""The demo: three runs, one page with their figures, and it resumes when it was stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tiny_runs
from loopt import LoopPlan
from loopt.errors import RunError
from loopt.reproduce.quick import QuickResult, claim, quick
from loopt.runs import TrainConfig
from loopt.training import Outcome, Session

DIRECTORIES = ["1x1-seed5", "1x3-seed5", "3x1-seed5"]


@pytest.fixture(scope="module")
def base() -> TrainConfig:
    return tiny_runs.tiny(model=replace(tiny_runs.TINY.model, plan=LoopPlan.parse("1x3")), seed=5)


@pytest.fixture(scope="module")
def out(base: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory where the demo has been run."""
    out = tmp_path_factory.mktemp("quick")
    assert isinstance(quick(base, out, tiny_runs.CPU, print), QuickResult)
    return out


@pytest.mark.slow
def test_page_and_claim_have_the_results_figures(base: TrainConfig, out: Path) -> None:
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [*DIRECTORIES, "curves.png", "curves.svg", "index.html"]
    )
    done = quick(base, out, tiny_runs.CPU, print)
    assert isinstance(done, QuickResult)
    page = done.page.read_text(encoding="utf-8")
    for row, directory in zip(done.comparison.rows, DIRECTORIES, strict=True):
        result = json.loads((out / directory / "result.json").read_text())
        assert (row.parameters, row.flops, row.accuracy) == (result["parameters"], result["flops"], result["accuracy"])
        for text in (page, claim(done.comparison)):
            assert f"{result['accuracy']:.1%}" in text
        assert [step for step, _ in row.curve] == [6, 12, 18, 24]
    assert claim(done.comparison) in page
    assert page.count("</small></th>") == 3  # one row for each loop
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_trained_is_not_trained_again(base: TrainConfig, out: Path) -> None:
    before = {path: state for path, state in tiny_runs.snapshot(out).items() if path.parent != out}
    page = (out / "index.html").read_text()
    said: list[str] = []
    quick(base, out, tiny_runs.CPU, said.append)
    assert [line.partition(": found in ")[0] for line in said] == ["(1⊗1)", "(1⊗3)", "(3⊗1)"]
    assert all(", finished " in line and ", accuracy " in line for line in said)
    assert {path: state for path, state in tiny_runs.snapshot(out).items() if path.parent != out} == before
    assert (out / "index.html").read_text() == page


def test_a_stopped_demo_resumes(base: TrainConfig, out: Path, tmp_path: Path) -> None:
    stopped = quick(base, tmp_path, Session(device="cpu", time_limit=0), print)
    assert isinstance(stopped, Outcome)
    assert (stopped.finished, stopped.step, stopped.reason) == (False, 1, "time limit")
    assert [path.name for path in tmp_path.iterdir()] == DIRECTORIES[1:2]  # one thread here: the deepest begins

    assert isinstance(quick(base, tmp_path, tiny_runs.CPU, print), QuickResult)
    for directory in DIRECTORIES:
        tiny_runs.assert_same(tmp_path / directory, out / directory)


def test_blocks_of_several_layers(base: TrainConfig, tmp_path: Path) -> None:
    done = quick(
        replace(base, model=replace(base.model, plan=LoopPlan.parse("2x2")), steps=6), tmp_path, tiny_runs.CPU, print
    )
    assert isinstance(done, QuickResult)
    assert [row.name for row in done.comparison.rows] == ["Base (2⊗1)", "Loop (2⊗2)", "Base (4⊗1)"]
    assert claim(done.comparison).startswith("Loop (2⊗2) runs 2 layers 2 times.")
    assert done.page.read_text(encoding="utf-8").count("</small></th>") == 2


def test_a_page_that_cannot_be_written_is_told(base: TrainConfig, out: Path, tmp_path: Path) -> None:
    for directory in DIRECTORIES:
        (tmp_path / directory).symlink_to(out / directory)
    (tmp_path / "index.html").mkdir()
    with pytest.raises(RunError, match=r"cannot write .*index\.html: Is a directory"):
        quick(base, tmp_path, tiny_runs.CPU, print)
