"""The tables of the paper as data: rows, the runs behind them, and the paper's numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from loopt.errors import RunError
from loopt.files import explain_os_errors, read_json, write_atomically
from loopt.model import ModelConfig
from loopt.plan import LoopPlan
from loopt.runs import OptimizerConfig, TrainConfig
from loopt.tasks import Task

Scale = Literal["cpu", "short", "paper"]

WORDS = ("finished", "config", "source", "hardware", "torch", "loopt")
NUMBERS = ("step", "parameters", "flops", "seconds")
"""What every result has, besides its accuracies."""


@dataclass(frozen=True)
class Row:
    """One model of a table, with the paper's numbers by column."""

    plan: LoopPlan
    paper: dict[str, float]

    @property
    def looped(self) -> bool:
        """Tells whether any layer of the model runs more than once."""
        return self.plan.depth > self.plan.distinct_layers


@dataclass(frozen=True)
class Experiment:
    """A table. A row has one run for each of ``variants``, which fills one column or more."""

    name: str
    title: str
    rows: tuple[Row, ...]
    variants: tuple[str, ...]
    columns_of: Callable[[str, Scale], dict[str, str]]
    """variant, scale -> the column that each test of the run's task fills."""
    configure: Callable[[LoopPlan, str, Scale], TrainConfig]
    """plan, variant, scale -> the config of the run, but for its seed."""
    small: dict[str, str]
    """Headings of the columns at scale cpu, where tasks are smaller; the paper's column stands in brackets."""
    loops_to_test: tuple[int, ...] = ()
    """Numbers of loops to test every finished model with, besides its own."""
    best_of: int = 1
    """The paper reports the best of so many seeds."""

    def columns(self, scale: Scale) -> list[str]:
        return [column for variant in self.variants for column in self.columns_of(variant, scale).values()]

    def seeds_at(self, scale: Scale) -> int:
        """Returns the default number of seeds: at scale paper as many as the paper, else one."""
        return self.best_of if scale == "paper" else 1


def miniature(
    task: Task, plan: LoopPlan, optim: OptimizerConfig, steps: int, rope_base: float = 30.0, eval_every: int = 100
) -> TrainConfig:
    """Returns a config of scale cpu, with d_model = 48: a whole table takes minutes on two cores."""
    return TrainConfig(
        source=task,
        model=ModelConfig(plan=plan, d_model=48, n_heads=3, d_ff=192, rope_base=rope_base),
        optim=optim,
        steps=steps,
        batch_size=64,
        log_every=50,
        eval_every=eval_every,
        eval_examples=1024,
        test_examples=4096,
    )


@dataclass(frozen=True)
class Job:
    """One run of an experiment."""

    experiment: Experiment
    scale: Scale
    row: Row
    variant: str
    seed: int

    @property
    def name(self) -> str:
        """Returns the name of the run's directory and of its result file."""
        variant = f"-{self.variant}" if self.variant else ""
        return f"{self.row.plan}{variant}-seed{self.seed}"

    @property
    def config(self) -> TrainConfig:
        """Returns the config of the run, with its seed."""
        return replace(self.experiment.configure(self.row.plan, self.variant, self.scale), seed=self.seed)

    def result_path(self, results: Path) -> Path:
        return results / self.experiment.name / self.scale / f"{self.name}.json"

    def read_result(self, results: Path) -> dict[str, Any] | None:
        """Returns the run's result file, or None where there is none; raises a RunError where it is damaged."""
        path = self.result_path(results)
        if not path.exists():
            return None
        try:
            found: dict[str, Any] = read_json(path)
            for wrong in self._wrong_fields(found):
                raise RunError(f"{path}: not a result of this row, by its {wrong}")
        except RunError as error:
            raise RunError(f"{error}; delete it to measure the row again") from None
        return found

    def _wrong_fields(self, found: Any) -> Iterator[str]:
        """Yields the fields that tables need and the file does not have, or not as they should be."""
        result = found.get("result") if isinstance(found, dict) else None
        if not isinstance(result, dict):
            yield "result"
            return
        yield from (name for name in WORDS if not isinstance(result.get(name), str))
        yield from (name for name in NUMBERS if not _is_number(result.get(name), 0, 2**63))
        if not _is_number(result.get("accuracy"), 0, 1):
            yield "accuracy"
        tests = self.experiment.columns_of(self.variant, self.scale).keys()
        if not (_are_shares(result.get("accuracies")) and result["accuracies"].keys() >= tests):
            yield "accuracies"  # one of an older config may have others
        curve = found.get("curve")
        if not (isinstance(curve, list) and all(map(_is_point, curve))):
            yield "curve"
        yield from (name for name in ("by_loops", "by_difficulty") if not _are_shares(found.get(name, {})))
        if not all(loops.isdecimal() and len(loops) < 19 for loops in found.get("by_loops", {})):
            yield "by_loops"

    def write_result(self, results: Path, result: dict[str, Any]) -> None:
        path = self.result_path(results)
        with explain_os_errors(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(result, indent=1) + "\n")


def _is_number(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _are_shares(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_number(share, 0, 1) for share in value.values())


def _is_point(value: Any) -> bool:
    """Tells whether this is a point of a curve: step, accuracy on validation, seconds."""
    return isinstance(value, list) and len(value) == 3 and all(map(_is_number, value, (0, 0, 0), (2**63, 1, 2**63)))


def jobs_of(experiment: Experiment, scale: Scale, seeds: int) -> list[Job]:
    """Returns every run of an experiment: all rows of the first seed, then of the next."""
    return [
        Job(experiment, scale, row, variant, seed)
        for seed in range(seeds)
        for row in experiment.rows
        for variant in experiment.variants
    ]


def describe_finished(result: dict[str, Any]) -> str:
    """Returns in words when a run was finished, by which code, and its accuracy."""
    code = f"loopt {result['loopt']} (source {result['source']})"
    return f"finished {result['finished']} by {code}, accuracy {result['accuracy']:.1%}"
