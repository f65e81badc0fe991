"""Runs that train at the same time on the cores of a CPU, in one process. A small model gets one thread, since several
gain little, so that each core can train another."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from loopt.devices import pick_device
from loopt.runs import TrainConfig
from loopt.training.clock import SharedClock
from loopt.training.outcome import Outcome
from loopt.training.progress import Display, ProgressLine
from loopt.training.session import Session
from loopt.training.signals import catch_signals
from loopt.training.threads import training_threads
from loopt.training.trainer import train_stepwise


@dataclass(frozen=True)
class Training:
    """A run that is to be trained, and what progress calls it."""

    config: TrainConfig
    directory: Path
    label: str


def train_side_by_side(runs: Sequence[Training], session: Session, display: Display) -> list[Outcome | None]:
    """Trains runs, each as ``train`` does, and returns their outcomes; the deepest begin. A signal, or the session's
    time limit, which is for all together, stops those that train; None is for those that had not begun."""
    device = pick_device(session.device)
    usual, began = torch.get_num_threads(), time.monotonic()
    building, stopped = threading.Lock(), threading.Event()
    with catch_signals() as caught, training_threads([run.config for run in runs], session, device) as threads:
        together = max(1, usual // torch.get_num_threads()) if device.type == "cpu" else 1

        def to_its_end(run: Training) -> Outcome | None:
            if stopped.is_set():
                return None
            line = ProgressLine(display, run.label)
            steps = train_stepwise(run.config, run.directory, session, SharedClock(began), caught, [line])
            outcome = None
            try:
                with building:  # starting weights are drawn by the one generator of the process
                    outcome = _advance(steps)
                while outcome is None:
                    outcome = _advance(steps)
            finally:
                if outcome is None or not outcome.finished or outcome.signal:
                    stopped.set()
            if outcome.reason == "already finished":
                display.advance(run.config.steps, trained=False)
            return outcome

        display.say_once(threads)
        deepest_first = sorted(runs, key=lambda run: -run.config.model.plan.depth)
        with ThreadPoolExecutor(together) as pool:
            found = {run.label: pool.submit(to_its_end, run) for run in deepest_first}
            return [found[run.label].result() for run in runs]


def _advance(steps: Generator[None, None, Outcome]) -> Outcome | None:
    """Takes a step of a run, and returns its outcome where it has ended."""
    try:
        next(steps)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome
    return None
