"""A run on disk: config.json, metrics.jsonl, checkpoints/, result.json, and the tokenizer of a language model.

What is read back is checked first: it may be damaged, edited or another run's. What is written goes only to the files
that this process holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal

from torch import Tensor

from loopt.devices import DeviceName, pick_device
from loopt.errors import ConfigError, InputError, RunError, require
from loopt.files import (
    check_signature,
    explain_os_errors,
    parse_json,
    read_json,
    signed,
    sync,
    temporary_of,
    try_lock,
    write_atomically,
)
from loopt.model import LoopedTransformer, empty_model
from loopt.runs import checkpoint, codec
from loopt.runs.checkpoint import CheckpointError, TrainState, WrittenFile
from loopt.runs.config import TrainConfig
from loopt.source import Codec

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
        self._hash = hashlib.sha256()  # of metrics.jsonl as far as it is written

    @classmethod
    def load(cls, directory: Path | str) -> Run:
        directory = Path(directory)
        inside = directory / "run"
        if (directory / "weights.safetensors").exists() and (inside / "config.json").exists():
            raise InputError(f"{directory} is a model that loopt prove saved; as a run it is {inside}")
        return cls(directory, read_config(directory / "config.json"))

    @classmethod
    def start(cls, directory: Path, config: TrainConfig) -> Run:
        """Takes ``directory`` for training ``config``: new, or the same run to resume."""
        run = cls(directory, config)
        try:
            with explain_os_errors(f"write the run {directory}"):
                run._refuse_what_is_not_ours()  # before anything is written
                run.checkpoints.mkdir(parents=True, exist_ok=True)
                run._lock = run._lock_file(".lock")
                run._refuse_what_is_not_ours()  # again, now that no other process can start one here
                if not (directory / "config.json").exists():
                    for name, text in config.source.run_files().items():
                        write_atomically(directory / name, text)
                    write_atomically(directory / "config.json", json.dumps(codec.to_json(config), indent=1) + "\n")
                # What is written is locked too: somebody may have deleted .lock while another process trains.
                run._metrics = run._lock_file("metrics.jsonl")
                checkpoint.remove_leftovers(run.checkpoints)
        except BaseException:
            run.close()
            raise
        return run

    def _refuse_what_is_not_ours(self) -> None:
        """Raises a RunError where the directory holds another run, or files of which nobody knows whose they are."""
        directory, path = self.directory, self.directory / "config.json"
        if path.exists():
            changed = codec.differences(read_config(path), self.config)
            if changed:
                name, (before, now) = next(iter(changed.items()))
                more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
                raise RunError(
                    f"run {directory} was started with {name}={before}, now {now}{more}: choose another directory, "
                    f"or resume it as it was with: loopt train --from {path} --run {directory}"
                )
        elif directory.is_dir():
            strangers = self._strangers()
            if strangers:
                more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
                raise RunError(
                    f"run {directory}: has {strangers[0]!r}{more}, but no config.json: choose another directory"
                )

    def _strangers(self) -> list[str]:
        """Returns what no process left that was killed before it wrote config.json."""
        first_files = self.config.source.run_files()
        ours = {".lock", *(temporary_of(Path(name)).name for name in ("config.json", *first_files))}

        def left_over(entry: Path) -> bool:
            if entry.name in first_files:
                return entry.is_file() and entry.read_bytes() == first_files[entry.name].encode()
            if entry == self.checkpoints:
                return entry.is_dir() and not any(entry.iterdir())
            return entry.name in ours

        return sorted(entry.name for entry in self.directory.iterdir() if not left_over(entry))

    def _lock_file(self, name: str) -> IO[bytes]:
        file = try_lock(self.directory / name)
        if file is None:
            raise BusyError(f"run {self.directory} is being trained by another process")
        return file

    def _check_place(self) -> None:
        """Raises a RunError where the files that this process holds are no longer those of the run's directory."""
        for name, file in ((".lock", self._lock), ("metrics.jsonl", self._metrics)):
            if file is None:
                continue
            path = self.directory / name
            try:
                in_place = os.path.samestat(os.fstat(file.fileno()), path.stat())
            except OSError:
                in_place = False
            if not in_place:
                raise RunError(f"{path} was deleted, moved or replaced while the run trained: nothing more is written")

    def close(self) -> None:
        for file in (self._metrics, self._lock):
            if file:
                with contextlib.suppress(OSError):  # what a full disk did not take has been reported by log
                    file.close()
        self._metrics = self._lock = None

    # Checkpoints

    def resume_point(self) -> TrainState | None:
        """Returns the newest checkpoint, or None where there is none. It and the best one, which the end of the run
        will need, are checked: a damaged one is refused, not skipped."""
        steps = checkpoint.steps_in(self.checkpoints)
        state = self._checked(steps[-1]) if steps else None
        if state and state.best and state.best.step != state.step:
            self._checked(state.best.step)
        return state

    def find(self, which: Literal["best", "last"] | int) -> TrainState:
        """Returns the checkpoint of a step, the last one, or the best one by validation, checked."""
        self._check_place()
        steps = checkpoint.steps_in(self.checkpoints)
        if not steps:
            raise CheckpointError(f"run {self.directory} has no checkpoint yet")
        if which not in ("best", "last", *steps):
            allowed = " | ".join(["best", "last", *map(str, steps)])
            raise CheckpointError(f"checkpoint={codec.shown(which)}: allowed is {allowed}, which {self.directory} has")
        state = self._checked(steps[-1] if isinstance(which, str) else which)
        if which == "best" and state.best:
            return self._checked(state.best.step)
        return state

    def _checked(self, step: int) -> TrainState:
        """Returns the state of a checkpoint that is intact. A best one that somebody deleted is forgotten."""
        with self.advising(step):
            state = checkpoint.load_state(self.checkpoints, step, self.fingerprint)
        deleted = state.best is not None and state.best.step not in checkpoint.steps_in(self.checkpoints)
        return replace(state, best=None) if deleted else state

    @contextmanager
    def advising(self, step: int) -> Iterator[None]:
        """Adds to an error about the checkpoint of ``step`` how to resume without it."""
        try:
            yield
        except InputError as error:
            raise CheckpointError(f"{error}. {self._advice(step)}") from None

    def _advice(self, damaged: int) -> str:
        """Returns how to go on without a checkpoint; none that is intact is to be deleted."""
        newer = []
        for step in reversed(checkpoint.steps_in(self.checkpoints)):
            if step != damaged:
                with contextlib.suppress(CheckpointError):
                    state = checkpoint.load_state(self.checkpoints, step, self.fingerprint)
                    break
            newer.append(checkpoint.name_of(step))
        else:
            return "No other one is intact: begin again in another directory"
        if step < damaged:
            doomed = ", ".join(reversed(newer))
            return f"The newest intact one before it is of step {step}: delete {doomed} to resume from there"
        if state.best and state.best.step == damaged:
            return (
                f"It was the best so far. That of step {step} is intact: delete {checkpoint.name_of(damaged)} to "
                "resume from there, and to have the best of what follows in the end"
            )
        return f"That of step {step} is intact, and training resumes from there"

    def save(
        self,
        weights: dict[str, Tensor],
        optimizer: dict[str, Tensor],
        state: TrainState,
        keep: Collection[int] = (),
    ) -> None:
        """Saves a checkpoint, for good where ``keep`` has its step. Of the older ones only the last stays, the best
        that each of them knows of, and those for good."""
        self._check_place()
        if state.step in checkpoint.steps_in(self.checkpoints):
            return
        checkpoint.save(self.checkpoints, weights, optimizer, state, kept=state.step in keep)
        steps = checkpoint.steps_in(self.checkpoints)
        for_good = {step for step in steps if checkpoint.is_kept(self.checkpoints, step)}
        needed = self.with_bests(steps[-KEEP_LAST:]) | for_good | set(keep)
        with explain_os_errors(f"delete old checkpoints in {self.checkpoints}"):
            for step in steps:
                if step not in needed:
                    checkpoint.remove(self.checkpoints, step)

    def with_bests(self, steps: list[int]) -> set[int]:
        """Returns these checkpoints and the best one that each knows of: who goes back to one of them will want it."""
        needed = set(steps)
        for step in steps:
            with contextlib.suppress(CheckpointError):
                best = checkpoint.read_state(self.checkpoints / checkpoint.name_of(step)).best
                needed |= {best.step} if best else set()
        return needed

    def load_model(self, which: Literal["best", "last"] | int = "best") -> LoopedTransformer:
        step = self.find(which).step
        model = empty_model(replace(self.config.model, plan=self.config.plan_of_checkpoint(step)))
        with self.advising(step):
            checkpoint.load_weights(self.checkpoints, step, model)
        model.codec = self.codec
        return model

    @property
    def codec(self) -> Codec:
        """Returns what turns text into the model's tokens and back."""
        return self.config.source.codec(self.directory)

    # Metrics

    @property
    def metrics_path(self) -> Path:
        return self.directory / "metrics.jsonl"

    def cut_metrics(self, resumed: TrainState | None) -> None:
        """Cuts metrics.jsonl back to what the checkpoint had seen of it, which must be as it was."""
        assert self._metrics is not None
        with explain_os_errors(f"write {self.metrics_path}"):
            kept = b""
            if resumed:
                kept = self.metrics_path.read_bytes()[: resumed.metrics.bytes]
                self._check_metrics(kept, resumed)
            self._hash.update(kept)
            self._metrics.truncate(len(kept))
            self._metrics.seek(len(kept))  # truncate leaves the position, which sync_metrics reports, where it was
            sync(self.directory)

    def _check_metrics(self, data: bytes, state: TrainState) -> None:
        """Raises a RunError unless the data begins with what had been written when a checkpoint was saved."""
        written = data[: state.metrics.bytes]
        if len(written) < state.metrics.bytes or hashlib.sha256(written).hexdigest() != state.metrics.sha256:
            raise RunError(
                f"{self.metrics_path}: not as it was at the checkpoint of step {state.step}, which saw "
                f"{state.metrics.bytes} bytes of it: restore the file, or choose another directory"
            )

    def log(self, entry: dict[str, Any]) -> None:
        assert self._metrics is not None
        self._check_place()
        with explain_os_errors(f"write {self.metrics_path}"):
            line = json.dumps(_finite(entry)).encode() + b"\n"
            self._metrics.write(line)
            self._metrics.flush()
            self._hash.update(line)

    def sync_metrics(self) -> WrittenFile:
        """Waits until metrics.jsonl is on the disk, and returns what is there."""
        assert self._metrics is not None
        with explain_os_errors(f"write {self.metrics_path}"):
            os.fsync(self._metrics.fileno())
            return WrittenFile(self._metrics.tell(), self._hash.hexdigest())

    def read_metrics(self) -> list[dict[str, Any]]:
        """Returns the lines so far; one that is still being written is left out."""
        state = None
        with contextlib.suppress(CheckpointError):  # one that is damaged is refused where it is wanted
            state = self._newest_state()  # read first: what is trained meanwhile comes after it
        with explain_os_errors(f"read {self.metrics_path}"):
            data = self.metrics_path.read_bytes() if self.metrics_path.exists() else b""
        if state:
            self._check_metrics(data, state)
            if self.result_path.exists() and len(data) > state.metrics.bytes:
                raise RunError(f"{self.metrics_path}: more than was written before the run was finished")
        *complete, _ = data.split(b"\n")
        return [self._read_entry(line, number) for number, line in enumerate(complete, start=1)]

    def _newest_state(self) -> TrainState | None:
        steps = checkpoint.steps_in(self.checkpoints)
        return checkpoint.read_state(self.checkpoints / checkpoint.name_of(steps[-1])) if steps else None

    def _read_entry(self, line: bytes, number: int) -> dict[str, Any]:
        where = f"{self.metrics_path}:{number}"
        entry = parse_json(line, where)
        numbers = isinstance(entry, dict) and (entry.get("step"), entry.get("seconds"))
        if not (numbers and isinstance(numbers[0], int) and isinstance(numbers[1], int | float)):
            raise RunError(f"{where}: allowed is an object with step, seconds and other figures")
        return entry

    # Result

    @property
    def result_path(self) -> Path:
        return self.directory / "result.json"

    def write_result(self, result: dict[str, Any]) -> None:
        """Writes result.json, which marks the run as finished."""
        self._check_place()
        with explain_os_errors(f"write {self.result_path}"):
            write_atomically(self.result_path, json.dumps(signed(_finite(result)), indent=1) + "\n")

    def read_result(self) -> dict[str, Any] | None:
        """Returns the result of a finished run, or None. One that was edited, or is another run's, is refused."""
        path = self.result_path
        if not path.exists():
            return None
        try:
            result = check_signature(read_json(path), path)
            if result.get("config") != self.fingerprint:
                found = codec.shown(result.get("config"))
                raise RunError(f"{path}: belongs to another config ({found}, this run's is {self.fingerprint})")
            codec.decode(int, result.get("step"), f"{path}: step")
        except InputError as error:
            raise RunError(f"{error}; delete it to measure the run again") from None
        return result


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values with null for those that JSON has no number for: infinity, and what is not a number."""

    def one(value: Any) -> Any:
        if isinstance(value, dict):
            return _finite(value)
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {name: one(value) for name, value in values.items()}


def read_config(path: Path) -> TrainConfig:
    """Reads a run's config.json, or a result file, which has the config inside."""
    if not path.exists():
        raise RunError(f"{path}: no such file; a run's directory holds its config.json, and `loopt runs` lists runs")
    data = read_json(path)
    inside = data.get("config") if isinstance(data, dict) else None
    if isinstance(inside, str):
        raise RunError(f"{path}: it has no config, only its hash; a run's config.json is beside it")
    try:
        return codec.from_json(data if inside is None else inside)
    except InputError as error:
        raise ConfigError(f"{path}: {error}") from None


def load(
    directory: Path | str,
    *,
    loops: int | None = None,
    device: DeviceName = "cpu",
    checkpoint: Literal["best", "last"] | int = "best",
) -> LoopedTransformer:
    """Returns the trained model of a run, ready to be called: its best checkpoint, its last one, or that of a step.
    With ``loops`` its loopable block runs so often, wherever a call does not say otherwise."""
    require(isinstance(directory, str | Path), "directory", directory, "the path of a run", RunError)
    model = Run.load(directory).load_model(checkpoint)
    model.config = replace(model.config, plan=model.plan_with(loops))  # the weights stay those that were trained
    return model.to(pick_device(device))
