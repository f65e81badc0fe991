"""From result files to the paper's table, ours beside theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopt.analysis import percent_gap
from loopt.plan import LoopPlan
from loopt.report.sheet import Cell, Line, Sheet
from loopt.reproduce.experiment import Experiment, Job, Row, Scale, jobs_of
from loopt.runs import codec

MOST_SEEDS = 100
SOLVED = 0.99


def by_loops(experiment: Experiment, scale: Scale, results: Path) -> dict[str, dict[int, float]]:
    """Accuracy by the number of loops at inference, of every run that was measured so."""
    curves = {}
    for job in jobs_of(experiment, scale, 1):
        found = job.read_result(results)
        if found is not None and "by_loops" in found:
            curves[job.name.removesuffix("-seed0")] = {int(n): share for n, share in found["by_loops"].items()}
    return curves


def by_difficulty(experiment: Experiment, scale: Scale, results: Path) -> dict[LoopPlan, dict[str, float]]:
    """Accuracy on each difficulty, of the run that the table shows for a row; only where that is a single one."""
    curves = {}
    for row in experiment.rows:
        match _measure(experiment, scale, row, results).best:
            case [{"by_difficulty": found}]:
                curves[row.plan] = found
    return curves


def build_sheet(experiment: Experiment, scale: Scale, results: Path) -> Sheet:
    """The table from the files alone; rows that are not measured yet have no numbers of ours."""
    columns = experiment.columns(scale)
    measured = {row.plan: _measure(experiment, scale, row, results) for row in experiment.rows}
    ours = {plan: one.values for plan, one in measured.items()}
    paper = {row.plan: row.paper for row in experiment.rows}
    lines = []
    for row in experiment.rows:
        values, best = measured[row.plan].values, measured[row.plan].best
        gap = Cell(_gap(row.plan, columns, ours), _gap(row.plan, columns, paper), scale != "cpu")
        lines.append(
            Line(
                name=f"{'Loop' if row.looped else 'Base'} {row.plan.typography}",
                looped=row.looped,
                parameters=best[0]["result"]["parameters"] if best else None,
                flops=best[0]["result"]["flops"] if best else None,
                cells=[Cell(values.get(column), row.paper.get(column), scale != "cpu") for column in columns],
                gap=gap if row.looped else None,
                steps=sum(one["result"]["step"] for one in best) if best else None,
                solved=[solved_at(one) for one in best] if len(best) == len(experiment.variants) else [],
                seconds=sum(one["result"]["seconds"] for one in best) if best else None,
            )
        )
    labels = [experiment.small[column] if scale == "cpu" else column for column in columns]
    notes = _notes(experiment, scale, measured)
    return Sheet(f"{experiment.title}, scale {scale}", labels, lines, notes)


def solved_at(result: dict[str, Any]) -> int | None:
    return next((step for step, accuracy, _ in result["curve"] if accuracy >= SOLVED), None)


@dataclass(frozen=True)
class _Measured:
    """Of one row: of each variant, the best seed's."""

    values: dict[str, float]
    """Our accuracies in %, by column."""
    best: list[dict[str, Any]]
    """The results they come from."""
    seeds: dict[str, list[float]]
    """Mean accuracy in % of every seed, in their order, by variant."""
    outdated: list[str]
    """Those whose settings are no longer the experiment's."""


def _measure(experiment: Experiment, scale: Scale, row: Row, results: Path) -> _Measured:
    measured = _Measured({}, [], {}, [])
    for variant in experiment.variants:
        done = []
        for seed in range(MOST_SEEDS):
            job = Job(experiment, scale, row, variant, seed)
            result = job.read_result(results)
            if result is not None:
                done.append((job, result))
        if done:
            result = max((result for _, result in done), key=lambda one: one["result"]["accuracy"])
            measured.best.append(result)
            measured.seeds[variant] = [100 * one["result"]["accuracy"] for _, one in done]
            for job, one in done:
                if one["result"]["config"] != codec.fingerprint(job.config.resolved()):
                    measured.outdated.append(job.name)
            for test, column in experiment.columns_of(variant, scale).items():
                measured.values[column] = 100 * result["result"]["accuracies"][test]
    return measured


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


def _notes(experiment: Experiment, scale: Scale, by_plan: dict[LoopPlan, _Measured]) -> list[str]:
    measured = by_plan.values()
    notes = ["Accuracy in %, ours (the paper's, difference); % gap likewise, by the mean over the columns."]
    if not experiment.in_the_paper:
        notes = ["Accuracy in %; % gap by the mean over the columns. The paper has no such table."]
    elif scale == "cpu":
        notes = [
            "Accuracy in %, ours (the paper's); % gap likewise, by the mean over the columns.",
            "At this scale the task and the models are smaller than the paper's: look at the pattern alone.",
        ]
    notes.append(
        "Steps and seconds of the runs shown; to 99%: the step at which validation first had that, run by run."
    )
    seeds = sorted({len(accuracies) for one in measured for accuracies in one.seeds.values()})
    if seeds:
        notes.append(_of_seeds(seeds[0], seeds[-1], experiment.seeds))
    several = [text for plan, one in by_plan.items() for text in _seed_by_seed(plan, one)]
    if several:
        notes.append(f"Mean accuracy of each seed: {'; '.join(several)}.")
    outdated = [name for one in measured for name in one.outdated]
    if outdated:
        notes.append(f"Measured with settings that have changed since: {', '.join(outdated)}.")
    for key, what in (("hardware", "On"), ("torch", "torch"), ("loopt", "loopt")):
        seen = sorted({result["result"][key] for one in measured for result in one.best})
        if seen:
            notes.append(f"{what} {', '.join(seen)}.")
    return notes


def _seed_by_seed(plan: LoopPlan, measured: _Measured) -> list[str]:
    """Of the variants that have more than one."""
    return [
        " ".join(filter(None, (plan.typography, variant, ", ".join(f"{accuracy:.1f}" for accuracy in accuracies))))
        for variant, accuracies in measured.seeds.items()
        if len(accuracies) > 1
    ]


def _of_seeds(fewest: int, most: int, in_the_paper: int) -> str:
    count = str(most) if fewest == most else f"{fewest} to {most}"
    ours = "One seed each" if most == 1 else f"The best of {count} seeds by mean accuracy"
    return f"{ours}; the paper's, the best of {in_the_paper}." if in_the_paper > 1 else f"{ours}."
