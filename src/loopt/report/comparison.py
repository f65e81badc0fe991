"""A table of three models: a looped one between its iso-param and iso-flop baselines."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.table import Table

from loopt.analysis import percent_gap
from loopt.plan import LoopPlan
from loopt.report.drawing import human


@dataclass(frozen=True)
class TrainedModel:
    """One row of the table."""

    plan: LoopPlan
    parameters: int
    flops: int
    accuracy: float
    steps: int
    seconds: float
    curve: list[tuple[int, float]]
    """(step, validation accuracy)"""

    @property
    def name(self) -> str:
        looped = self.plan.depth > self.plan.distinct_layers
        return f"{'Loop' if looped else 'Base'} {self.plan.typography}"


@dataclass(frozen=True)
class Comparison:
    """A looped model and its two baselines."""

    iso_param: TrainedModel
    looped: TrainedModel
    iso_flop: TrainedModel

    @property
    def rows(self) -> list[TrainedModel]:
        return [self.iso_param, self.looped, self.iso_flop]

    @property
    def gap(self) -> float:
        if self.iso_flop.accuracy < self.iso_param.accuracy:
            return math.nan
        return percent_gap(self.looped.accuracy, self.iso_param.accuracy, self.iso_flop.accuracy)


COLUMNS = ("model", "parameters", "FLOPs", "accuracy", "% gap", "steps", "seconds")


def cells(comparison: Comparison) -> list[list[str]]:
    """Returns the text of the table's cells, row by row."""
    gap = "-" if math.isnan(comparison.gap) else f"{comparison.gap:.0f}"
    return [
        [
            row.name,
            human(row.parameters),
            human(row.flops),
            f"{row.accuracy:.1%}",
            gap if row is comparison.looped else "",
            str(row.steps),
            f"{row.seconds:.0f}",
        ]
        for row in comparison.rows
    ]


def terminal_table(comparison: Comparison, title: str) -> Table:
    """Returns the table for a terminal, the looped model highlighted."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "model" else "right")
    for row, line in zip(comparison.rows, cells(comparison), strict=True):
        table.add_row(*line, style="bold cyan" if row is comparison.looped else "")
    return table
