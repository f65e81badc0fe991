"""Every task has a preset, and one that learns on a CPU; a task without one trains, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from command_line import run
from loopt import tasks
from loopt.runs import read_config
from loopt.tasks import PHop, Task
from loopt.training import presets

Captured = pytest.CaptureFixture[str]
FEW = [
    *("--batch-size", "8", "--eval-examples", "4", "--test-examples", "4", "--model.d-model", "8"),
    *("--model.n-heads", "1", "--device", "cpu"),
]


@pytest.mark.parametrize("name", tasks.names())
def test_every_task_has_a_preset_and_a_small_one(name: str) -> None:
    for preset in (name, f"{name}-cpu"):
        config = presets.preset(preset).resolved()
        assert config.source.name == name
        assert config.model.plan.blocks[0].loops > 1  # looping is what this is about
    assert config.model.parameters() < 100_000
    assert config.steps <= 1000


@pytest.mark.parametrize("name", [f"{name}-cpu" for name in tasks.names()])
def test_a_small_preset_trains(name: str, tmp_path: Path) -> None:
    assert run("train", name, "--steps", "2", *FEW, "--run", str(tmp_path / "run")) == 0


def test_a_task_without_a_preset_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    class Hops(PHop):
        """Hops, but nobody made a preset for them."""

        name = "hops"

    monkeypatch.setitem(tasks.known(), "hops", Hops)
    assert run("train", "hops", "--steps", "2", "--n", "40", *FEW, "--run", str(tmp_path / "run")) == 0
    source = read_config(tmp_path / "run" / "config.json").source
    assert source == Hops(n=40)
    capsys.readouterr()
    assert run("train", "--help-all") == 0  # --help shows a screen that is kept
    assert "\n  hops " in capsys.readouterr().out
    assert run("tasks", "list") == 0
    assert "Hops, but nobody made a preset for them." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "warmup", "told"),
    [
        ("--steps 5", 0, "warm-up: 0 of 5 steps, as 30 of 400 before; --optim.warmup-steps sets it\n"),
        ("--steps=20", 1, "warm-up: 1 of 20 steps, as 30 of 400 before; --optim.warmup-steps sets it\n"),
        ("--steps 20 --optim.warmup_steps 7", 7, ""),
        ("--steps 120", 30, ""),
    ],
)
def test_a_short_trial_has_a_short_warmup_and_says_so(
    options: str, warmup: int, told: str, tmp_path: Path, capsys: Captured
) -> None:
    small = ["--n", "8", "--p", "1", "--model.plan", "1x1", "--time-limit", "0"]
    assert run("train", "phop-cpu", *options.split(), *small, *FEW, "--run", str(tmp_path / "run")) == 0
    assert read_config(tmp_path / "run" / "config.json").optim.warmup_steps == warmup
    assert capsys.readouterr().err.startswith(told or str(tmp_path))


def test_a_warmup_that_is_asked_for_and_too_long_is_refused(tmp_path: Path, capsys: Captured) -> None:
    command = ["train", "phop-cpu", "--steps", "5", "--optim.warmup-steps", "6", "--run", str(tmp_path / "run")]
    assert run(*command) == 2
    assert "optim.warmup_steps=6: allowed is at most steps=5" in capsys.readouterr().err


def test_the_small_config_takes_any_task() -> None:
    task = PHop(p=(1,), n=8)
    assert isinstance(presets.small(task).source, Task)
    assert replace(presets.small(task), source=PHop()) == presets.small(PHop())
