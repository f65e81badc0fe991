"""The tables of the paper as data: rows, the runs behind them, and the paper's numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from loopt.errors import RunError
from loopt.files import explain_os_errors, read_json, write_atomically
from loopt.model import ModelConfig
from loopt.plan import LoopPlan
from loopt.reproduce.measurement import Measurement
from loopt.reproduce.task_measurement import TaskMeasurement
from loopt.runs import OptimizerConfig, TrainConfig
from loopt.runs.config import RegularizerConfig
from loopt.tasks import Task

Scale = Literal["cpu", "short", "paper"]


@dataclass(frozen=True)
class Row:
    """One model of a table, with the paper's numbers by column."""

    plan: LoopPlan
    paper: dict[str, float]
    regularizer: RegularizerConfig = field(default_factory=RegularizerConfig)
    recipe: str = ""
    """Names another way of training than the other rows', for an experiment that has such."""

    @property
    def name(self) -> str:
        """Returns the row's name among files: its plan, such as 4x1-4-1, its regularizer, 24x1-k4-w10, its recipe."""
        parts, pull = [re.sub("[^0-9x]+", "-", str(self.plan)).replace("x-", "x").strip("-")], self.regularizer
        if pull.active:
            parts += [f"k{pull.block}", f"w{pull.weight:g}", *([pull.kind] if pull.kind != "cosine" else [])]
        return "-".join([*parts, *self.recipe.split()])

    @property
    def label(self) -> str:
        """Returns the row's name in a table."""
        kind = "" if self.regularizer.active else "Loop " if self.looped else "Base "
        return kind + self.label_in_text

    @property
    def label_in_text(self) -> str:
        """Returns the row's name in a sentence."""
        name = self.plan.typography
        if self.regularizer.active:
            name = f"k={self.regularizer.block}, λ={self.regularizer.weight:g}"
            name += "" if self.regularizer.kind == "cosine" else ", ℓ2"
        return f"{name}, {self.recipe}" if self.recipe else name

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
    """plan, variant or the row's recipe, scale -> the config of the run, but for its seed and regularizer."""
    small: dict[str, str]
    """Headings of the columns at scale cpu, where tasks are smaller; the paper's column stands in brackets."""
    loops_to_test: tuple[int, ...] = ()
    """Numbers of loops to test every finished model with, besides its own."""
    best_of: int = 1
    """The paper reports the best of so many seeds."""
    measurement: Measurement = field(default_factory=TaskMeasurement)
    """What is measured of a finished run, and how its result file is read."""
    folder: str = ""
    """Where runs and results are; experiments that share rows share a folder. The experiment's name unless given."""
    comparable: tuple[Scale, ...] = ("short", "paper")
    """The scales at which the paper's numbers measure the same thing as ours."""
    in_words: dict[str, str] = field(default_factory=dict)
    """What a column is called in figures, by its heading, where that is short."""

    def __post_init__(self) -> None:
        if not self.folder:
            object.__setattr__(self, "folder", self.name)

    def columns(self, scale: Scale) -> list[str]:
        return [column for variant in self.variants for column in self.columns_of(variant, scale).values()]

    def headings(self, scale: Scale) -> list[str]:
        """Returns the columns' headings in a table."""
        return [self.small[column] if scale == "cpu" else column for column in self.columns(scale)]

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
        return f"{self.row.name}{variant}-seed{self.seed}"

    @cached_property
    def config(self) -> TrainConfig:
        """Returns the config of the run, with its seed."""
        config = self.experiment.configure(self.row.plan, self.variant or self.row.recipe, self.scale)
        return replace(config, seed=self.seed, regularizer=self.row.regularizer)

    @property
    def tests(self) -> dict[str, str]:
        """Returns the column that each test of the run fills."""
        return self.experiment.columns_of(self.variant, self.scale)

    def result_path(self, results: Path) -> Path:
        return results / self.experiment.folder / self.scale / f"{self.name}.json"

    def read_result(self, results: Path) -> dict[str, Any] | None:
        """Returns the run's result file, or None where there is none; raises a RunError where it is damaged."""
        path = self.result_path(results)
        if not path.exists():
            return None
        try:
            found: dict[str, Any] = read_json(path)
            for wrong in self.experiment.measurement.wrong_fields(found, self.tests):
                raise RunError(f"{path}: not a result of this row, by its {wrong}")
        except RunError as error:
            raise RunError(f"{error}; delete it to measure the row again") from None
        return found

    def write_result(self, results: Path, result: dict[str, Any]) -> None:
        path = self.result_path(results)
        with explain_os_errors(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(result, indent=1) + "\n")


def jobs_of(experiment: Experiment, scale: Scale, seeds: int) -> list[Job]:
    """Returns every run of an experiment: all rows of the first seed, then of the next."""
    return [
        Job(experiment, scale, row, variant, seed)
        for seed in range(seeds)
        for row in experiment.rows
        for variant in experiment.variants
    ]
