"""The examples run, are short, and the page about a task of one's own shows the file that is run; with fewer steps than
they would take."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import run
from loopt.tasks import PHop, registry
from loopt.training import presets

HOME = Path(__file__).parents[1]
EXAMPLES = HOME / "examples"
PAGE = (HOME / "docs" / "own-task.md").read_text(encoding="utf-8")
FEW = "--steps 4 --batch-size 4 --eval-examples 8 --test-examples 8 --model.d-model 8 --model.d-ff 16 --device cpu"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("_known", "_origins"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        if "loopt-import:" in name or name == "my_task":
            del sys.modules[name]
    sys.path[:] = path


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) < 60


def test_the_page_shows_the_example() -> None:
    code, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code == (EXAMPLES / "own_task.py").read_text(encoding="utf-8")


@pytest.mark.slow
def test_commands_and_code_of_the_page_run(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(EXAMPLES / "own_task.py", "my_task.py")
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = [shlex.split(line)[1:] for line in block.splitlines()]
    assert [command[0] for command in commands] == ["tasks", "tasks", "train", "eval", "thoughts", "generate"]
    for command in commands:
        few = {"train": FEW, "eval": "--examples 50", "audit": "--examples 50"}
        options = few.get(command[0]) or few.get(command[1]) or ""
        assert run(*command, *options.split()) == 0, capsys.readouterr()
    told = capsys.readouterr()
    assert "warm-up: 0 of 4 steps, as 100 of 1000 before; --optim.warmup-steps sets it\n" in told.err
    assert "1x4 (trained)" in told.out  # of eval
    assert "first choice" in told.out  # of thoughts

    whole = presets.small(PHop(p=(1,), n=8))
    short = replace(whole, steps=4, eval_examples=8, test_examples=8, optim=replace(whole.optim, warmup_steps=0))
    monkeypatch.setattr(presets, "small", lambda task: replace(short, source=task))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("_known", "_origins"):  # as in a process of its own
        getattr(registry, name).pop("parity")
    _, code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out in ("0\n", "1\n")


def test_the_error_on_the_page_is_what_is_said(capsys: Captured) -> None:
    shutil.copy(EXAMPLES / "own_task.py", "my_task.py")
    assert run("train", "parity", "--import", "my_task.py", *FEW.split()) == 0
    registry._known.pop("parity")
    capsys.readouterr()
    assert run("eval", "runs/parity") == 2
    (shown,) = re.findall(r"```\n(loopt: .*?)\n```", PAGE, re.DOTALL)
    assert capsys.readouterr().err == shown.replace("\n", " ").replace("/home/me", str(Path.cwd())) + "\n"


def test_a_plain_training_loop(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["own_training_loop.py", "3"])
    runpy.run_path(str(EXAMPLES / "own_training_loop.py"))
    assert re.findall(r"(\d) loops: accuracy", capsys.readouterr().out) == ["1", "2", "3", "4", "8"]


def test_a_theorems_weights(capsys: Captured) -> None:
    runpy.run_path(str(EXAMPLES / "theorem_weights.py"))
    shown = capsys.readouterr().out
    assert "head 1 looks for the position that left names, and writes its element into left_element" in shown
    assert "position 5: here = 5, left = 1, right = 2" in shown
    assert "after loop 3: e  e  e  e  e  e  e  e  (1 2)" in shown
    assert "right on 200 of 200 random words" in shown
    right = re.search(r"with β = 1 in the keys: (\d+) of 200", shown)
    assert right
    assert int(right[1]) < 100
