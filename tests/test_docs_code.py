"""Every block of Python of README and the documents runs, and so does every command of the first steps.

A page's blocks run in their order, in one folder that has what the page starts from, with few steps where they train. A
block that cannot run says why in a comment in front of it: ``<!-- not run: it needs a GPU -->``.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import loopt.training
from doc_blocks import HOME, blocks_of
from journeys import JOURNEYS, Journey
from loopt.cli import main
from loopt.evaluation.mini_sets import mini_data_dir
from loopt.runs import TrainConfig
from loopt.tasks.groups import group
from loopt.theory.group_composition import build_group_composition
from loopt.theory.saved import save
from loopt.training import Outcome, Session
from tiny_language_runs import language_run
from tiny_runs import TINY
from tiny_text_runs import documents, text_directory

PAGES = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").glob("*.md"))]
IN_JOURNEYS = {journey.page for journey in JOURNEYS}
"""Pages whose Python runs between their commands."""
FIRST_STEPS = [journey for journey in JOURNEYS if journey.page == "get-started.md"][1:]
"""The demo and the page of a task of one's own have tests of their own."""
WITH_PYTHON = [
    page
    for page in PAGES
    if page.name not in IN_JOURNEYS and any(block.language == "python" for block in blocks_of(page))
]
FEW_STEPS = {
    "train": [
        *("--steps", "4", "--optim.warmup-steps", "1", "--eval-every", "2", "--eval-examples", "4"),
        *("--test-examples", "8"),
    ],
    "eval": ["--examples", "8"],
}


def short(config: TrainConfig) -> TrainConfig:
    optim = replace(config.optim, warmup_steps=1)
    return replace(config, optim=optim, steps=4, eval_every=2, eval_examples=8, test_examples=8)


@pytest.fixture(scope="module")
def task_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "phop-cpu"
    loopt.training.train(TINY, run, Session(device="cpu", progress=False))
    return run


@pytest.fixture
def folder(task_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what a reader has come to before: runs, prepared text, saved weights, task data."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "lm-cpu").symlink_to(language_run())
    (tmp_path / "runs" / "phop-cpu").symlink_to(task_run)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "persuasion").symlink_to(text_directory())
    (tmp_path / "evals").symlink_to(mini_data_dir())
    save(build_group_composition(group("S3"), 8).model(), tmp_path / "weights" / "group-composition" / "S5-n64")
    (tmp_path / "my-texts").mkdir()
    for number, text in enumerate(documents(seed=1)):
        (tmp_path / "my-texts" / f"{number}.md").write_text(text, encoding="utf-8")
    train: Callable[..., Outcome] = loopt.training.train

    def train_shortly(config: TrainConfig, *arguments: Any, **named: Any) -> Outcome:
        return train(short(config), *arguments, **named)

    monkeypatch.setattr(loopt.training, "train", train_shortly)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, folder: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.title is not None:
            (folder / block.title).write_text(block.code, encoding="utf-8")
        elif block.language == "python" and not block.reason:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block.code, page.name, "exec"), names)
            shown = re.search(r"\n((?:# .*\n)+)$", block.code)  # what it prints, as comments at its end
            assert not shown or shown[1].replace("# ", "") == printed.getvalue()
    if page.name == "README.md":
        assert (folder / "runs" / "seed-1" / "result.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("journey", FIRST_STEPS, ids=lambda journey: journey.name)
def test_the_first_steps_run_as_they_are_shown(journey: Journey, folder: Path) -> None:
    """But for the steps of training."""
    for block in blocks_of(HOME / "docs" / journey.page, journey.section):
        if block.title is not None:
            (folder / block.title).write_text(block.code, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.code, journey.page, "exec"), {"__name__": "__main__"})
        else:
            for command in block.commands:
                if command == "pip install -e '.[data]'":  # tests have it
                    continue
                program, name, *rest = shlex.split(command)
                assert program == "loopt"
                assert main([name, *rest, *FEW_STEPS.get(name, [])]) == 0, command


def test_blocks_are_found_as_they_are_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n```sh\na \\\n  b\n```\n\n## Two\n\n```text\nno code\n```\n\n"
        '<!-- not run: it needs a GPU -->\n```python\nx = 1\n```\n\n```python title="task.py"\ny = 2\n```\n'
    )
    first, second, third = blocks_of(page)
    assert (first.language, first.commands) == ("sh", ["a    b"])
    assert (second.code, second.reason, second.title) == ("x = 1\n", "it needs a GPU", None)
    assert (third.code, third.reason, third.title) == ("y = 2\n", None, "task.py")
    assert blocks_of(page, "Two") == [second, third]
