"""Tables and figures are drawn again from result files alone, wherever one wants them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command_line import run
from look import texts_of
from loopt.reproduce.catalogue import EXPERIMENTS
from loopt.reproduce.experiment import Experiment, Scale, jobs_of
from loopt.reproduce.rendering import write_experiment
from loopt.reproduce.table import build_sheet, by_difficulty
from tiny_experiments import SUMS, leave_result

HOME = Path(__file__).parents[2]
INTERNAL = re.compile(r"\b\d+x\d+|_|seed\d|\bp\d+\b|phop|igsm|-fixed|-random")


@pytest.mark.parametrize("scale", ["cpu", "short", "paper"])
@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda experiment: experiment.name)
def test_every_column_is_called_in_words(experiment: Experiment, scale: Scale) -> None:
    for heading in experiment.headings(scale):
        words = experiment.in_words.get(heading, heading)
        assert not INTERNAL.search(words)
        assert re.search(r"[a-z]{4}", words)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["igsm-even", "loops"])
def test_figures_of_the_projects_results_are_in_words(name: str, tmp_path: Path) -> None:
    for path in write_experiment(EXPERIMENTS[name], "short", HOME / "results", tmp_path):
        if path.suffix == ".svg":
            assert path.stat().st_size < 200_000
            assert path.with_suffix(".png").exists()
            assert not [text for text in texts_of(path) if INTERNAL.search(text)]


def test_what_is_drawn_again_is_what_is_committed(tmp_path: Path) -> None:
    for path in write_experiment(EXPERIMENTS["loops"], "cpu", HOME / "results", tmp_path):
        if path.suffix in (".md", ".tex"):
            assert path.read_text() == (HOME / "results" / "loops" / "cpu" / path.name).read_text()
        else:
            assert (HOME / "results" / "loops" / "cpu" / path.name).exists()


def test_bars_reach_over_every_seed_of_a_row(tmp_path: Path) -> None:
    for job in jobs_of(SUMS, "short", 3):
        if job.seed == 0 or str(job.row.plan) == "1x1":
            accuracy = (5 + job.seed) / 10
            leave_result(job, tmp_path, {"n=2": accuracy, "n=3": 0.1}, by_difficulty={"1 operation": accuracy})
    first, second, _ = build_sheet(SUMS, "short", tmp_path).lines
    assert (first.cells[0].ours, first.cells[0].every) == (50.0, (50.0, 60.0, 70.0))
    assert (second.cells[0].ours, second.cells[0].every) == (50.0, ())
    spreads = [curve["1 operation"] for curve in by_difficulty(SUMS, "short", tmp_path).values()]
    assert [(spread.mean, spread.low, spread.high) for spread in spreads] == [(50, 50, 70), (50, 50, 50), (50, 50, 50)]


@pytest.mark.slow
def test_a_table_is_drawn_on_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("here", "there"):
        for job in jobs_of(EXPERIMENTS["igsm"], "cpu", 1):
            leave_result(job, tmp_path / folder, {"igsm": 0.5}, by_difficulty={"1 operation": 0.5})
    command = ["reproduce", "table", "igsm", "--draw", "figures", "--results"]
    assert run(*command, "here") == 0
    files = ["table.md", "table.tex", "table.svg", "table.png", "difficulty.svg", "difficulty.png"]
    assert f"Also as {', '.join(files)} in figures\n" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(files)
    assert {path.suffix for path in (tmp_path / "here").rglob("*.*")} == {".json"}  # nothing is drawn there

    for folders, found in ((["here", "there"], 2), (["nowhere"], 0)):
        assert run(*command, *folders) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert f"draw=figures: {found} of the folders {', '.join(folders)} have results of igsm" in told
