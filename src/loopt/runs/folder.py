"""A folder of runs: which there are, how far each is, and what of them can be deleted because it can be made again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loopt.errors import InputError
from loopt.files import explain_os_errors, try_lock
from loopt.runs import checkpoint
from loopt.runs.run import Run

State = Literal["finished", "training", "stopped", "not begun"]


@dataclass(frozen=True)
class Summary:
    """What a list shows of a run."""

    run: Run
    state: State
    step: int
    best: str
    """The best figure on validation so far, as a person wants to see it."""
    size: int
    """Bytes on the disk."""
    changed: float
    """When something was last written to it, in seconds since 1970."""


@dataclass(frozen=True)
class Doomed:
    """A checkpoint of a run that can be made again."""

    run: Run
    step: int
    size: int


@dataclass(frozen=True)
class Unreadable:
    """A run whose config cannot be read here, such as one whose task has to be imported first."""

    directory: Path
    why: str


def runs_in(folder: Path) -> Iterator[Run | Unreadable]:
    """Yields every run in a folder and the folders below, by name; what is not a run is passed."""
    if not folder.is_dir():
        raise InputError(f"folder={folder}: no such folder; allowed is one with runs, such as runs")
    for place, folders, files in os.walk(folder):
        folders.sort()
        if {"config.json", "metrics.jsonl"} <= set(files) and "checkpoints" in folders:
            folders.clear()  # a run has no runs inside
            try:
                yield Run.load(Path(place))
            except InputError as error:
                yield Unreadable(Path(place), str(error))


def summary_of(run: Run) -> Summary:
    steps = checkpoint.steps_in(run.checkpoints)
    best = ""
    if steps:
        with contextlib.suppress(InputError):  # one that is damaged is refused where it is wanted
            found = checkpoint.read_state(run.checkpoints / checkpoint.name_of(steps[-1])).best
            best = found.shown if found else ""
    files = [path for path in run.directory.rglob("*") if path.is_file() and not path.is_symlink()]
    state: State = "stopped" if steps else "not begun"
    if run.result_path.exists():
        state = "finished"
    elif is_training(run):
        state = "training"
    return Summary(run, state, steps[-1] if steps else 0, best, size_of(run.directory), _changed(files))


def is_training(run: Run) -> bool:
    """Tells whether a process holds the run's lock, as the one does that trains it."""
    for name in (".lock", "metrics.jsonl"):
        if (run.directory / name).exists() and _is_locked(run.directory / name):
            return True
    return False


def _is_locked(path: Path) -> bool:
    """Tells whether another process holds a file. One that may only be read can be asked, too; who may not even read it
    is told no."""
    modes: tuple[Literal["ab", "rb"], ...] = ("ab", "rb")
    for mode in modes:
        with contextlib.suppress(OSError):
            lock = try_lock(path, mode)
            if lock is not None:
                lock.close()
            return lock is None
    return False


def doomed_in(run: Run, finished: bool) -> list[Doomed]:
    """Returns the checkpoints that can go: all but the best, the last and those kept for good; with ``finished`` all of
    a run that has its result. None of a run that is being trained."""
    if is_training(run) or run.checkpoints.is_symlink():
        return []
    steps = checkpoint.steps_in(run.checkpoints)
    if finished and run.result_path.exists():
        needed: set[int] = set()
    else:
        needed = run.with_bests(steps[-1:]) | {step for step in steps if checkpoint.is_kept(run.checkpoints, step)}
    folders = {step: run.checkpoints / checkpoint.name_of(step) for step in steps if step not in needed}
    return [Doomed(run, step, size_of(folder)) for step, folder in folders.items() if not folder.is_symlink()]


def delete(doomed: Doomed) -> None:
    """Deletes a checkpoint, unless somebody has begun to train the run meanwhile."""
    with explain_os_errors(f"delete checkpoints of {doomed.run.directory}"):
        lock = try_lock(doomed.run.directory / ".lock")
        if lock is None:
            raise InputError(
                f"run {doomed.run.directory} is being trained by another process: nothing of it is deleted"
            )
        with lock:
            checkpoint.remove(doomed.run.checkpoints, doomed.step)


def size_of(folder: Path) -> int:
    """Returns the bytes of all files in a folder; one that is deleted meanwhile counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size if path.is_file() else 0
    return total


def _changed(files: list[Path]) -> float:
    times = [0.0]
    for path in files:
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)
