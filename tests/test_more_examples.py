"""The examples that use trained models, and the notebook, run as they are, with few steps."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import loopt.training
from loopt.runs import TrainConfig
from loopt.training import Outcome, Session, train
from tiny_runs import TINY
from tiny_text_runs import documents

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOK = EXAMPLES / "first_hour.ipynb"


def run_script(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.mark.parametrize("name", ["more_loops.py", "own_text.py"])
def test_an_example_can_be_read_at_a_glance(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) < 60


def test_more_loops_plots_accuracy_by_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    train(TINY, tmp_path / "run", Session(device="cpu", progress=False))
    figure = tmp_path / "loops.png"
    run_script(
        monkeypatch,
        "more_loops.py",
        str(tmp_path / "run"),
        "--loops",
        "1",
        "2",
        "3",
        "--examples",
        "16",
        "--out",
        str(figure),
    )
    printed = capsys.readouterr().out
    assert [line.split()[:2] for line in printed.splitlines()[:3]] == [["1", "loops"], ["2", "loops"], ["3", "loops"]]
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_own_text_trains_on_markdown_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").mkdir()
    for number, text in enumerate(documents(seed=2, count=9)):
        (tmp_path / "notes" / f"{number}.md").write_text(f"# Note {number}\n\n{text} " * 20, encoding="utf-8")
    run_script(
        monkeypatch,
        "own_text.py",
        str(tmp_path / "notes"),
        "--run",
        str(tmp_path / "run"),
        "--steps",
        "4",
        "--loops",
        "2",
    )
    first, _, written = capsys.readouterr().out.partition("\n")
    assert first.startswith("perplexity on text that was held out: ")
    assert written.strip()


def cells(kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_the_notebook_shows_what_it_gave_and_no_path_of_the_machine_it_ran_on() -> None:
    assert cells("markdown")
    for cell in cells("code"):
        assert cell["outputs"], "".join(cell["source"])
        assert not any(output["output_type"] == "error" for output in cell["outputs"])
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not any(place in text for place in ("/home/", "/root", "/tmp", "/work", "/usr", "/Users/", "site-packages"))


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Jupyter, with few steps and a shorter novel."""
    whole: Callable[..., Outcome] = loopt.training.train

    def train_shortly(config: TrainConfig, *arguments: Any, **named: Any) -> Outcome:
        optim = replace(config.optim, warmup_steps=1)
        short = replace(config, optim=optim, steps=4, eval_every=2, eval_examples=8, test_examples=8)
        return whole(short, *arguments, **named)

    monkeypatch.setattr(loopt.training, "train", train_shortly)
    monkeypatch.setenv("MPLBACKEND", "agg")
    (tmp_path / "persuasion").mkdir()
    for number, text in enumerate(documents(seed=3, count=60)):
        (tmp_path / "persuasion" / f"{number}.txt").write_text(text * 4, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells("code"):
        exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
