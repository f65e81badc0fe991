"""Progress: plain lines where there is no terminal, labelled times where there is one, a total for several runs."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import tiny_runs
from loopt.training import Session, progress, train
from loopt.training.progress import Display, ProgressLine, duration

Captured = pytest.CaptureFixture[str]


def test_a_log_file_gets_a_line_for_every_log_and_evaluation(tmp_path: Path, capsys: Captured) -> None:
    train(tiny_runs.TINY, tmp_path / "mine", Session(device="cpu"))
    lines = capsys.readouterr().err.splitlines()
    logs = [re.fullmatch(r"mine: step (\d+) of 24, loss [\d.]+, [\d,]+ examples/s, \d+ s left", line) for line in lines]
    assert [int(log[1]) for log in logs if log] == list(range(2, 25, 2))
    found = [re.fullmatch(r"mine: step (\d+) of 24, validation accuracy [\d.]+%, \d+ s left", line) for line in lines]
    assert [int(one[1]) for one in found if one] == [6, 12, 18, 24]
    assert len(lines) == 12 + 4


def test_a_log_file_is_told_what_is_measured_but_not_every_part(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def said() -> list[str]:
        with Display() as display:
            line = ProgressLine(display, "mine")
            for part in ("text", "squad", "drop"):
                line.measured(f"best: {part}", 24)
        return capsys.readouterr().err.splitlines()

    assert said() == ["mine: measured best: text"]
    monkeypatch.setattr(progress, "SECONDS_BETWEEN", 0)
    assert said() == [f"mine: measured best: {part}" for part in ("text", "squad", "drop")]


def test_who_wants_no_progress_gets_none(tmp_path: Path, capsys: Captured) -> None:
    train(tiny_runs.TINY, tmp_path / "mine", Session(device="cpu", progress=False))
    assert capsys.readouterr() == ("", "")


def in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=160, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    return screen


def test_in_a_terminal_the_time_is_labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = in_a_terminal(monkeypatch)
    train(tiny_runs.TINY, tmp_path / "mine", Session(device="cpu"))
    assert re.search(r"mine .* 24/24 steps .* took \d+ s", screen.getvalue())
    assert "step 2 of 24" not in screen.getvalue()


def test_several_runs_show_a_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    configs = [tiny_runs.TINY, replace(tiny_runs.TINY, seed=1)]
    with Display(steps=[24, 24]) as display:
        for number, config in enumerate(configs):
            train(config, tmp_path / f"run{number}", Session(device="cpu"), display=display)
    lines = capsys.readouterr().err.splitlines()
    assert all(re.search(r"left; all 2 runs: (\d+ s left|time left unknown)$", line) for line in lines)
    assert lines[-1].endswith("0 s left; all 2 runs: 0 s left")

    screen = in_a_terminal(monkeypatch)
    with Display(steps=[24, 24]) as display:
        train(replace(tiny_runs.TINY, seed=2), tmp_path / "run2", Session(device="cpu"), display=display)
    assert re.search(r"all 2 runs .* 50% 24/48 steps", screen.getvalue())


@settings(max_examples=50)
@given(st.floats(0, 10**8))
def test_a_duration_is_the_time_to_a_part_in_24(seconds: float) -> None:
    units = {"d": 86_400, "h": 3600, "min": 60, "s": 1}
    told = sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+) (\w+)", duration(seconds)))
    assert abs(told - seconds) <= max(1, seconds / 24)
