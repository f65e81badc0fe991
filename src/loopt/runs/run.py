"""A run on disk: config.json, metrics.jsonl, checkpoints/, result.json, and the tokenizer of a language model."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal

from torch import Tensor

from loopt.errors import InputError, RunError
from loopt.files import explain_os_errors, sync, try_lock, write_atomically
from loopt.model import LoopedTransformer
from loopt.runs import checkpoint, codec
from loopt.runs.checkpoint import CheckpointError, TrainState
from loopt.runs.config import TrainConfig

KEEP_LAST = 2


class BusyError(RunError):
    """A run that another process is training."""


class Run:
    """The directory of one run. ``Run.load`` is for reading; ``Run.start`` for the process that trains it."""

    def __init__(self, directory: Path, config: TrainConfig) -> None:
        self.directory = directory
        self.config = config
        self.fingerprint = codec.fingerprint(config)
        self.checkpoints = directory / "checkpoints"
        self._lock: IO[bytes] | None = None
        self._metrics: IO[bytes] | None = None

    @classmethod
    def load(cls, directory: Path | str) -> Run:
        return cls(Path(directory), read_config(Path(directory) / "config.json"))

    @classmethod
    def start(cls, directory: Path, config: TrainConfig) -> Run:
        """Takes ``directory`` for training ``config``: new, or the same run to resume."""
        run = cls(directory, config)
        with explain_os_errors(f"write the run {directory}"):
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            run._take_lock()
            checkpoint.remove_leftovers(run.checkpoints)
        try:
            if (directory / "config.json").exists():
                changed = codec.differences(read_config(directory / "config.json"), config)
                if changed:
                    name, (before, now) = next(iter(changed.items()))
                    more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
                    raise RunError(
                        f"run {directory} was started with {name}={before}, now {now}{more}: choose another directory, "
                        f"or resume it as it was with: loopt train --from {directory / 'config.json'} --run {directory}"
                    )
            else:
                with explain_os_errors(f"write the run {directory}"):
                    for name, text in config.source.run_files().items():
                        write_atomically(directory / name, text)
                    write_atomically(directory / "config.json", json.dumps(codec.to_json(config), indent=1) + "\n")
        except BaseException:
            run.close()
            raise
        return run

    def _take_lock(self) -> None:
        self._lock = try_lock(self.directory / ".lock")
        if self._lock is None:
            raise BusyError(f"run {self.directory} is being trained by another process")

    def close(self) -> None:
        for file in (self._metrics, self._lock):
            if file:
                with contextlib.suppress(OSError):  # what a full disk did not take has been reported by log
                    file.close()
        self._metrics = self._lock = None

    # Checkpoints

    def resume_point(self) -> TrainState | None:
        """Returns the newest checkpoint, checked, or None where there is none. A damaged one is refused, not
        skipped."""
        steps = checkpoint.steps_in(self.checkpoints)
        return self._checked(steps[-1]) if steps else None

    def find(self, which: Literal["best", "last"] | int) -> TrainState:
        """Returns the checkpoint of a step, the last one, or the best one by validation, checked."""
        steps = checkpoint.steps_in(self.checkpoints)
        if not steps:
            raise CheckpointError(f"run {self.directory} has no checkpoint yet")
        if isinstance(which, int) and which not in steps:
            raise CheckpointError(f"run {self.directory} has no checkpoint of step {which}; it has {steps}")
        state = self._checked(steps[-1] if isinstance(which, str) else which)
        if which == "best" and state.best:
            return self._checked(state.best.step)
        return state

    def _checked(self, step: int) -> TrainState:
        with self.advising(step):
            return checkpoint.load_state(self.checkpoints, step, self.fingerprint)

    @contextmanager
    def advising(self, step: int) -> Iterator[None]:
        """Adds to an error about the checkpoint of ``step`` how to resume without it."""
        try:
            yield
        except InputError as error:
            raise CheckpointError(f"{error}. {self._advice(step)}") from None

    def _advice(self, damaged: int) -> str:
        steps = checkpoint.steps_in(self.checkpoints)
        doomed = ", ".join(checkpoint.name_of(step) for step in steps if step >= damaged)
        for step in reversed(steps):
            if step < damaged:
                with contextlib.suppress(CheckpointError):
                    checkpoint.load_state(self.checkpoints, step, self.fingerprint)
                    return f"The newest intact one before it is of step {step}: delete {doomed} to resume from there"
        return f"There is no intact one before it: delete {self.checkpoints} to begin again"

    def save(
        self,
        weights: dict[str, Tensor],
        optimizer: dict[str, Tensor],
        state: TrainState,
        keep: Collection[int] = (),
    ) -> None:
        """Saves a checkpoint, for good where ``keep`` has its step. Of the older ones only the last stays, the best
        that each of them knows of, and those for good."""
        if state.step in checkpoint.steps_in(self.checkpoints):
            return
        checkpoint.save(self.checkpoints, weights, optimizer, state, kept=state.step in keep)
        steps = checkpoint.steps_in(self.checkpoints)
        for_good = {step for step in steps if checkpoint.is_kept(self.checkpoints, step)}
        needed = self._with_bests(steps[-KEEP_LAST:]) | for_good | set(keep)
        with explain_os_errors(f"delete old checkpoints in {self.checkpoints}"):
            for step in steps:
                if step not in needed:
                    checkpoint.remove(self.checkpoints, step)

    def _with_bests(self, steps: list[int]) -> set[int]:
        """Returns these checkpoints and the best one that each knows of: who goes back to one of them will want it."""
        needed = set(steps)
        for step in steps:
            with contextlib.suppress(CheckpointError):
                state, _ = checkpoint.read_state(self.checkpoints / checkpoint.name_of(step))
                needed |= {state.best.step} if state.best else set()
        return needed

    def load_model(self, which: Literal["best", "last"] | int = "best") -> LoopedTransformer:
        step = self.find(which).step
        model = LoopedTransformer(replace(self.config.model, plan=self.config.plan_of_checkpoint(step)))
        with self.advising(step):
            checkpoint.load_weights(self.checkpoints, step, model)
        return model

    # Metrics

    @property
    def metrics_path(self) -> Path:
        return self.directory / "metrics.jsonl"

    def open_metrics(self, keep_bytes: int) -> None:
        """Opens metrics.jsonl for appending, cut back to what a checkpoint had seen of it."""
        with explain_os_errors(f"write {self.metrics_path}"):
            self._metrics = self.metrics_path.open("ab")
            size = self._metrics.tell()
            if size < keep_bytes:
                raise RunError(
                    f"{self.metrics_path} has {size} bytes, the checkpoint was written after {keep_bytes}: restore "
                    "the file, or choose another directory"
                )
            self._metrics.truncate(keep_bytes)
            self._metrics.seek(keep_bytes)  # truncate leaves the position, which sync_metrics reports, where it was
            sync(self.directory)

    def log(self, entry: dict[str, Any]) -> None:
        assert self._metrics is not None
        with explain_os_errors(f"write {self.metrics_path}"):
            self._metrics.write(json.dumps(entry).encode() + b"\n")
            self._metrics.flush()

    def sync_metrics(self) -> int:
        """Waits until metrics.jsonl is on the disk, and returns how many bytes it has."""
        assert self._metrics is not None
        with explain_os_errors(f"write {self.metrics_path}"):
            os.fsync(self._metrics.fileno())
            return self._metrics.tell()

    def read_metrics(self) -> list[dict[str, Any]]:
        """Returns the lines so far; one that is still being written is left out."""
        if not self.metrics_path.exists():
            return []
        complete, _, _ = self.metrics_path.read_text().rpartition("\n")
        return [json.loads(line) for line in complete.splitlines()]

    # Result

    def write_result(self, result: dict[str, Any]) -> None:
        """Writes result.json, which marks the run as finished."""
        path = self.directory / "result.json"
        with explain_os_errors(f"write {path}"):
            write_atomically(path, json.dumps(result, indent=1) + "\n")

    def read_result(self) -> dict[str, Any] | None:
        """Returns the result of a finished run, or None."""
        path = self.directory / "result.json"
        if not path.exists():
            return None
        try:
            result: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: not a result ({error}); delete it to measure the run again") from None
        return result


def read_config(path: Path) -> TrainConfig:
    """Reads a run's config.json, or a result file, which has the config inside."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise RunError(f"{path}: no such file; a run's directory holds its config.json") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: not a config ({error})") from None
    inside = data.get("config") if isinstance(data, dict) else None
    if isinstance(inside, str):
        raise RunError(f"{path}: it has no config, only its hash; a run's config.json is beside it")
    return codec.from_json(data if inside is None else inside)


def load(directory: Path | str, checkpoint: Literal["best", "last"] | int = "best") -> LoopedTransformer:
    """Returns the trained model of a run: as its best checkpoint has it, or its last one, or that of a step."""
    return Run.load(directory).load_model(checkpoint)
