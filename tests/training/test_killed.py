"""A run that is killed, whenever and however often, and started again is the run that never was."""

from __future__ import annotations

import random
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tiny_runs import CPU, Child, Strike, assert_same, finished, last_step, metrics, tiny

pytestmark = pytest.mark.slow

PLACES = [
    r"open \.config\.json\.tmp",
    r"os\.rename \.config\.json\.tmp config\.json",
    r"os\.mkdir \.tmp-step-\d+",
    r"open optimizer\.safetensors",
    r"open state\.json",
    r"open \.tmp-step-\d+",
    r"os\.rename \.tmp-step-\d+ step-\d+",
    r"open checkpoints",
    r"os\.rename step-\d+ \.tmp-old-step-\d+",
    r"os\.remove weights\.safetensors",
    r"os\.rmdir \.tmp-old-step-\d+",
]


def test_killed_at_every_file_operation(tmp_path: Path) -> None:
    config = tiny("adafactor", steps=40, eval_every=2)
    unbroken, run = finished(config, tmp_path / "unbroken"), tmp_path / "killed"
    places: list[str] = []
    leftovers: list[str] = []
    # Each process gets one operation further than the one before: first they die on their way to the checkpoint they
    # start from, many times in a row without a step of progress, then at each point of the next one.
    while (child := Child(config, run, strike=Strike(signal.SIGKILL, len(places) + 1)).wait()).exitcode:
        assert child.exitcode == -signal.SIGKILL
        places.append(child.struck_at.read_text())
        leftovers += [path.name for path in run.glob("checkpoints/.tmp-*")]
    assert len(places) >= 20
    unseen = [place for place in PLACES if not any(re.fullmatch(place, seen) for seen in places)]
    assert not unseen, places
    for half_done in (r"\.tmp-step-\d+", r"\.tmp-old-step-\d+"):
        assert any(re.fullmatch(half_done, name) for name in leftovers)
    assert_same(run, unbroken)
    assert not list(run.glob("checkpoints/.tmp-*"))


def test_killed_at_random_moments(tmp_path: Path) -> None:
    config = tiny("muon", steps=90)
    unbroken, run = finished(config, tmp_path / "unbroken"), tmp_path / "killed"
    draw = random.Random(0)
    kills = 0
    for _ in range(12):
        child = Child(config, run).wait(draw.uniform(0.02, 0.2))
        if child.exitcode == 0:
            break
        child.process.kill()
        assert child.wait().exitcode in (-signal.SIGKILL, 0)
        kills += child.exitcode == -signal.SIGKILL
    assert kills
    assert_same(finished(config, run), unbroken)


def test_stopped_right_after_kills(tmp_path: Path) -> None:
    """What killed processes logged after the checkpoint is gone from the file, and from the count of its bytes."""
    config = tiny()
    unbroken, run = finished(config, tmp_path / "unbroken"), tmp_path / "killed"
    for step in (6 + 5, 5):  # the second process starts from the checkpoint of step 6
        assert Child(config, run, strike=Strike(signal.SIGKILL, step=step)).wait().exitcode == -signal.SIGKILL
        assert last_step(run) == 6
        assert metrics(run)[-1]["step"] == 10
    hurried = Child(config, run, replace(CPU, time_limit=0)).wait()
    assert hurried.outcome["step"] == last_step(run) == 7
    assert_same(finished(config, run), unbroken)
