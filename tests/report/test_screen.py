"""What the user wrote is shown as it is: brackets are no markup, and control characters give no commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.table import Table

import loopt
from command_line import is_refusal, run
from loopt.report.screen import printable, screen
from loopt.training import Session, train
from tiny_runs import TINY

NAME = "[bold]:smile:[/][red\n\x1b[31m"
SHOWN = r"[bold]:smile:[/][red\n\x1b[31m"
Captured = pytest.CaptureFixture[str]


def test_text_is_printed_as_one_line_of_visible_characters() -> None:
    assert printable(NAME) == SHOWN
    assert printable("\udcff\x00\x7f") == r"\udcff\x00\x7f"
    assert printable(Path("runs/ß ⊗")) == "runs/ß ⊗"


def test_brackets_in_titles_cells_and_text_are_no_markup(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    table = Table("[head] of a table", title="[title]:smile:")
    table.add_row("[/] [red", style="bold")
    console = screen()
    console.print(table)
    console.print("[bold]text")
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("[head]", "[title]:smile:", "[/] [red", "[bold]text"))


def test_nothing_else_is_printed_with_markup() -> None:
    """Progress bars have consoles of their own, on which names are printed without markup too."""
    package = Path(loopt.__file__).parent
    elsewhere = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        if re.search(r"\bConsole\(|\brich\.print\b|from rich import print", file.read_text(encoding="utf-8"))
    }
    assert elsewhere == {"report/screen.py", "text/progress.py", "training/progress.py"}


def test_a_run_may_be_called_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    train(TINY, NAME, Session(device="cpu", progress=False))
    capsys.readouterr()
    for command in (("eval", NAME), ("train", "--from", f"{NAME}/config.json"), ("prove", "phop", "--compare", NAME)):
        assert run(*command, *(("--device", "cpu") if command[0] != "prove" else ())) in (0, 1)
        shown = capsys.readouterr()
        assert "\x1b" not in shown.out + shown.err
        assert SHOWN in shown.out
    assert run("reproduce", "table", "phop", "--results", NAME) == 0
    assert SHOWN in capsys.readouterr().out
    for command in (
        ("analyze", "similarity", NAME),
        ("eval", f"{NAME}{NAME}"),
        ("eval", NAME * 100),
        ("tasks", "show", NAME),
    ):
        assert run(*command) == 2
        assert is_refusal(capsys.readouterr().err)


@pytest.mark.parametrize(
    "command",
    [
        *("eval", "thoughts", "analyze similarity", "train --from", "train phop-cpu --run", "prove cot --save"),
        *("prove phop --compare", "reproduce quick --out", "reproduce status --results", "tasks show group --group"),
    ],
)
def test_a_name_that_is_not_utf8_is_refused_before_the_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*command.split(), "\udcff.json") == 2
    shown = capsys.readouterr().err
    assert is_refusal(shown)
    assert r"\udcff" in shown
    assert list(tmp_path.iterdir()) == []
