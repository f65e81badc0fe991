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


def runs_in(folder: Path) -> Iterator[Run]:
    """Yields every run in a folder and the folders below, by name; what is not a run, or cannot be read, is passed."""
    if not folder.is_dir():
        raise InputError(f"folder={folder}: no such folder; allowed is one with runs, such as runs")
    for place, folders, files in os.walk(folder):
        folders.sort()
        if "config.json" in files and "checkpoints" in folders:
            folders.clear()  # a run has no runs inside
            with contextlib.suppress(InputError):
                yield Run.load(Path(place))


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
        if (run.directory / name).exists():
            with explain_os_errors(f"read {run.directory / name}"):
                lock = try_lock(run.directory / name)
            if lock is None:
                return True
            lock.close()
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
