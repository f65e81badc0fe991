"""From result files to the paper's table, ours beside theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loopt.analysis import percent_gap
from loopt.plan import LoopPlan
from loopt.report.sheet import Cell, Line, Sheet
from loopt.reproduce.experiment import Experiment, Job, Row, Scale

MOST_SEEDS = 100


def build_sheet(experiment: Experiment, scale: Scale, results: Path) -> Sheet:
    """The table from the files alone; rows that are not measured yet have no numbers of ours."""
    columns = experiment.columns(scale)
    measured = {row.plan: _measure(experiment, scale, row, results) for row in experiment.rows}
    ours = {plan: values for plan, (values, _) in measured.items()}
    paper = {row.plan: row.paper for row in experiment.rows}
    lines = []
    for row in experiment.rows:
        values, found = measured[row.plan]
        lines.append(
            Line(
                name=f"{'Loop' if row.looped else 'Base'} {row.plan.typography}",
                looped=row.looped,
                parameters=found[0]["result"]["parameters"] if found else None,
                flops=found[0]["result"]["flops"] if found else None,
                cells=[Cell(values.get(column), row.paper.get(column)) for column in columns],
                gap=Cell(_gap(row.plan, columns, ours), _gap(row.plan, columns, paper)),
                steps=sum(one["result"]["step"] for one in found) if found else None,
                seconds=sum(one["result"]["seconds"] for one in found) if found else None,
            )
        )
    labels = [experiment.small[column] if scale == "cpu" else column for column in columns]
    return Sheet(f"{experiment.title}, scale {scale}", labels, lines, _notes(experiment, scale, measured))


def _measure(
    experiment: Experiment, scale: Scale, row: Row, results: Path
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Our accuracies in % by column, and the results they come from: of each variant, the best seed's."""
    values: dict[str, float] = {}
    found: list[dict[str, Any]] = []
    for variant in experiment.variants:
        seeds = (Job(experiment, scale, row, variant, seed).read_result(results) for seed in range(MOST_SEEDS))
        done = [result for result in seeds if result is not None]
        if done:
            best = max(done, key=lambda result: result["result"]["accuracy"])
            found.append(best)
            for test, column in experiment.columns_of(variant, scale).items():
                values[column] = 100 * best["result"]["accuracies"][test]
    return values, found


def _gap(plan: LoopPlan, columns: Sequence[str], values: dict[LoopPlan, dict[str, float]]) -> float | None:
    """% gap of a looped row, by the mean over the columns; None where a row or number it needs is not there."""
    if plan.depth == plan.distinct_layers:
        return None
    means = []
    for one in (plan, plan.iso_param, plan.iso_flop):
        numbers = [values.get(one, {}).get(column) for column in columns]
        if any(number is None for number in numbers):
            return None
        means.append(sum(number for number in numbers if number is not None) / len(columns))
    looped, iso_param, iso_flop = means
    gap = percent_gap(looped, iso_param, iso_flop)
    return None if iso_flop <= iso_param or math.isnan(gap) else gap


def _notes(
    experiment: Experiment, scale: Scale, measured: dict[LoopPlan, tuple[dict[str, float], list[dict[str, Any]]]]
) -> list[str]:
    results = [one for _, found in measured.values() for one in found]
    notes = ["Accuracy in %, ours (the paper's); % gap likewise, by the mean over the columns."]
    if scale == "cpu":
        notes.append("At this scale the task and the models are smaller than the paper's: look at the pattern alone.")
    if experiment.seeds > 1:
        notes.append("Of several seeds the one with the highest mean accuracy, as in the paper.")
    for key, what in (("hardware", "On"), ("torch", "torch"), ("loopt", "loopt")):
        seen = sorted({one["result"][key] for one in results})
        if seen:
            notes.append(f"{what} {', '.join(seen)}.")
    return notes
