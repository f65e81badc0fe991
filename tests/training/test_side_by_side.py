"""Runs side by side on a CPU: each is what it would be alone, and what stops one stops all."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny_runs
from loopt import LoopedTransformer, LoopPlan
from loopt.runs import TrainConfig
from loopt.training import DivergedError, Outcome, Session, side_by_side, train, trainer
from loopt.training.progress import Display
from loopt.training.side_by_side import Training, train_side_by_side

PLANS = ("1x1", "1x3", "3x1")
QUIET = Session(device="cpu", progress=False)


@pytest.fixture
def two_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def trainings(folder: Path, steps: int = 24) -> list[Training]:
    model = tiny_runs.TINY.model
    configs = [tiny_runs.tiny(model=replace(model, plan=LoopPlan.parse(plan)), steps=steps) for plan in PLANS]
    return [Training(config, folder / plan, plan) for config, plan in zip(configs, PLANS, strict=True)]


def trained(runs: list[Training], session: Session = QUIET) -> list[Outcome | None]:
    return train_side_by_side(runs, session, Display(False))


@pytest.fixture
def steps_by(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The thread of every step, in the order in which the steps ended."""
    threads: list[int] = []
    advance = side_by_side._advance

    def watched(steps: Generator[None, None, Outcome]) -> Outcome | None:
        found = advance(steps)
        threads.append(threading.get_ident())
        return found

    monkeypatch.setattr(side_by_side, "_advance", watched)
    return threads


def test_each_run_is_to_the_bit_what_it_is_alone(two_cores: None, steps_by: list[int], tmp_path: Path) -> None:
    runs = trainings(tmp_path / "together")
    outcomes = trained(runs)
    first, second = dict.fromkeys(steps_by)  # two threads, and the first did not end before the second began
    assert steps_by.index(second) < len(steps_by) - 1 - steps_by[::-1].index(first)
    for run, outcome in zip(runs, outcomes, strict=True):
        assert outcome is not None
        assert outcome.reason == "all steps done"
        train(run.config, tmp_path / "alone" / run.label, QUIET)
        tiny_runs.assert_same(run.directory, tmp_path / "alone" / run.label)
    assert [one.reason for one in trained(runs) if one] == ["already finished"] * 3


def test_a_time_limit_is_for_all_and_the_deepest_begin(two_cores: None, tmp_path: Path) -> None:
    shallow, *deep = trained(trainings(tmp_path), replace(QUIET, time_limit=0.0))
    assert shallow is None
    assert [(one.step, one.reason) for one in deep if one] == [(1, "time limit")] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1x3", "3x1"]


def test_the_time_of_all_counts(monkeypatch: pytest.MonkeyPatch, steps_by: list[int], tmp_path: Path) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: float(len(steps_by)))  # a second for each step; one run at a time
    shallow, looped, deep = trained(trainings(tmp_path), replace(QUIET, time_limit=30.0))
    assert shallow is None
    assert looped is not None
    assert looped.finished
    assert deep is not None
    assert (deep.finished, deep.reason) == (False, "time limit")


def test_weights_are_drawn_for_one_run_at_a_time(
    two_cores: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawing, most = 0, 0
    build = trainer.build_model

    def watched(config: TrainConfig, device: torch.device) -> LoopedTransformer:
        nonlocal drawing, most
        drawing += 1
        most = max(most, drawing)
        time.sleep(0.05)  # the other thread may come
        model = build(config, device)
        drawing -= 1
        return model

    monkeypatch.setattr(trainer, "build_model", watched)
    trained(trainings(tmp_path))
    assert most == 1


def test_a_signal_stops_all_and_they_resume(
    two_cores: None, monkeypatch: pytest.MonkeyPatch, steps_by: list[int], tmp_path: Path
) -> None:
    runs, watched = trainings(tmp_path / "stopped"), side_by_side._advance

    def interrupted(steps: Generator[None, None, Outcome]) -> Outcome | None:
        if len(steps_by) == 12:
            os.kill(os.getpid(), signal.SIGINT)
        return watched(steps)

    monkeypatch.setattr(side_by_side, "_advance", interrupted)
    shallow, *deep = trained(runs)
    assert shallow is None
    assert [(one.finished, one.signal) for one in deep if one] == [(False, signal.SIGINT)] * 2
    assert all(one is not None and one.finished for one in trained(runs))
    for run in trainings(tmp_path / "unbroken"):
        train(run.config, run.directory, QUIET)
        tiny_runs.assert_same(run.directory, tmp_path / "stopped" / run.label)


def test_where_one_diverges_no_other_begins(two_cores: None, tmp_path: Path) -> None:
    shallow, looped, deep = trainings(tmp_path)
    wild = replace(deep, config=replace(deep.config, optim=replace(deep.config.optim, lr=1e30, warmup_steps=0)))
    with pytest.raises(DivergedError):
        trained([shallow, replace(looped, config=replace(looped.config, steps=200)), wild])
    assert not shallow.directory.exists()
