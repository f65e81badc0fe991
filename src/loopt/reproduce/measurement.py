"""What is measured of a finished run: the base for rows that learn a task and for language models."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from loopt.runs import Run, TrainConfig, codec

if TYPE_CHECKING:
    from loopt.reproduce.experiment import Job

WORDS = ("finished", "config", "source", "hardware", "torch", "loopt")
NUMBERS = ("step", "parameters", "flops", "seconds")
"""What every result has, besides what was measured."""


class Measurement(ABC):
    """Turns a finished run into the fields of a result file, and reads these back for tables."""

    @abstractmethod
    def measure(self, job: Job, run: Run, device: torch.device) -> Generator[str, None, dict[str, Any]]:
        """Returns the fields of the result file besides ``fields_of_run``. It yields the name of each part once that is
        measured; interrupted there and started again, it goes on after it."""

    @abstractmethod
    def values(self, found: Mapping[str, Any]) -> dict[str, float]:
        """Returns the numbers of a result file by test, as a table shows them."""

    @abstractmethod
    def wrong_measured(self, found: Mapping[str, Any], tests: Collection[str]) -> Iterator[str]:
        """Yields the measured fields that tables need and the file does not have, or not as they should be."""

    @abstractmethod
    def shown(self, result: Mapping[str, Any]) -> str:
        """Returns in words how good a finished run is, by its result.json."""

    @property
    @abstractmethod
    def curve(self) -> str:
        """Returns the name of what the learning curve shows, in metrics.jsonl."""

    def steps_to_keep(self, job: Job) -> tuple[int, ...]:
        """Returns the steps whose checkpoints the measurement needs, besides the best one."""
        return ()

    def after_writing(self, run: Run, result: Path, keep: Collection[int]) -> None:  # noqa: B027 (most keep their runs as they are)
        """Puts what is to be kept besides the result file next to it, and removes what is no longer needed, but
        not the checkpoints to ``keep``, which the user asked for."""

    def tokens(self, found: Mapping[str, Any]) -> str:
        """Returns what tells the training examples and their order: rows of one seed are compared only where it is the
        same. Those of tasks follow from the config."""
        return ""

    def is_current(self, config: TrainConfig, found: Mapping[str, Any]) -> bool:
        """Tells whether a result was measured with this config."""
        return bool(found["result"]["config"] == codec.fingerprint(config.resolved()))

    def is_complete(self, found: Mapping[str, Any]) -> bool:
        """Tells whether a result has all that would be measured now."""
        return True

    def wrong_fields(self, found: Any, tests: Collection[str]) -> Iterator[str]:
        """Yields the fields that tables need and the file does not have, or not as they should be."""
        result = found.get("result") if isinstance(found, dict) else None
        if not isinstance(result, dict):
            yield "result"
            return
        yield from (name for name in WORDS if not isinstance(result.get(name), str))
        yield from (name for name in NUMBERS if not is_number(result.get(name), 0, 2**63))
        yield from self.wrong_measured(found, tests)

    def describe_finished(self, result: Mapping[str, Any]) -> str:
        """Returns in words when a run was finished, by which code, and how good it is."""
        code = f"loopt {result['loopt']} (source {result['source']})"
        return f"finished {result['finished']} by {code}, {self.shown(result)}"

    def fields_of_run(self, job: Job, run: Run) -> dict[str, Any]:
        """Returns the fields that every result file has."""
        evaluations = (line for line in run.read_metrics() if self.curve in line)
        return {
            "experiment": job.experiment.folder,
            "scale": job.scale,
            "plan": str(job.row.plan),
            "variant": job.variant,
            "seed": job.seed,
            "result": run.read_result(),
            "curve": [[line["step"], line[self.curve], round(line["seconds"], 1)] for line in evaluations],
            "config": codec.to_json(codec.without_places(run.config)),
        }


def is_number(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def is_curve(value: Any, most: float) -> bool:
    """Tells whether this is a learning curve: points of step, a number from 0 to ``most``, seconds."""
    limits = (2**63, most, 2**63)
    return isinstance(value, list) and all(
        isinstance(point, list) and len(point) == 3 and all(map(is_number, point, (0, 0, 0), limits)) for point in value
    )
