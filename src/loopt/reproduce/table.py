"""From result files to the paper's table, our numbers beside the paper's.

A number of ours is the mean over the seeds that all measured rows share, with the range where there are several. Seeds
of some rows only are in a note: they show the noise, and compare nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from loopt.analysis import percent_gap
from loopt.plan import LoopPlan
from loopt.report.sheet import Cell, Line, Sheet
from loopt.reproduce.experiment import Experiment, Job, Row, Scale, jobs_of
from loopt.runs import codec

MOST_SEEDS = 100
SOLVED = 0.99


def by_loops(experiment: Experiment, scale: Scale, results: Path) -> dict[str, dict[int, float]]:
    """Returns accuracy by the number of loops at inference, for every run of seed 0 that was tested so."""
    curves = {}
    for job in jobs_of(experiment, scale, 1):
        found = job.read_result(results)
        if found is not None and "by_loops" in found:
            curves[job.name.removesuffix("-seed0")] = {int(n): share for n, share in found["by_loops"].items()}
    return curves


def by_difficulty(experiment: Experiment, scale: Scale, results: Path) -> dict[LoopPlan, dict[str, float]]:
    """Returns accuracy by difficulty, the mean over the seeds that the table shows; for rows of one run a seed."""
    curves = {}
    for plan, row in TableResults.read(experiment, scale, results).rows.items():
        if len(row.shown) == 1 and all("by_difficulty" in run for run in row.runs):
            names = [
                name for name in row.runs[0]["by_difficulty"] if all(name in run["by_difficulty"] for run in row.runs)
            ]
            curves[plan] = {name: fmean(run["by_difficulty"][name] for run in row.runs) for name in names}
    return curves


def build_sheet(experiment: Experiment, scale: Scale, results: Path) -> Sheet:
    """Returns the table from the result files alone; rows that are not measured yet have no numbers of ours."""
    columns = experiment.columns(scale)
    measured = TableResults.read(experiment, scale, results)
    means = {
        plan: {column: fmean(values) for column, values in row.columns.items()} for plan, row in measured.rows.items()
    }
    paper = {row.plan: row.paper for row in experiment.rows}
    lines = []
    for row in experiment.rows:
        ours, comparable = measured.rows[row.plan], scale != "cpu"
        gap = Cell.of([_gap(row.plan, columns, means)], _gap(row.plan, columns, paper), comparable)
        runs = ours.runs
        lines.append(
            Line(
                name=f"{'Loop' if row.looped else 'Base'} {row.plan.typography}",
                looped=row.looped,
                parameters=runs[0]["result"]["parameters"] if runs else None,
                flops=runs[0]["result"]["flops"] if runs else None,
                cells=[Cell.of(ours.columns.get(name, []), row.paper.get(name), comparable) for name in columns],
                gap=gap if row.looped else None,
                seeds=max((len(shown) for shown in ours.shown.values()), default=0),
                steps=[run["result"]["step"] for run in runs],
                solved=[solved_at(run) for run in runs],
                seconds=sum(run["result"]["seconds"] for run in runs) if runs else None,
            )
        )
    labels = [experiment.small[column] if scale == "cpu" else column for column in columns]
    return Sheet(f"{experiment.title}, scale {scale}", labels, lines, _notes(experiment, scale, measured))


def solved_at(result: dict[str, Any]) -> int | None:
    """Returns the step at which validation accuracy first reached 99%, or None."""
    return next((step for step, accuracy, _ in result["curve"] if accuracy >= SOLVED), None)


@dataclass(frozen=True)
class RowResults:
    """The results of one row."""

    every: dict[str, dict[int, dict[str, Any]]]
    """All results, by variant and seed."""
    shown: dict[str, list[dict[str, Any]]]
    """Results by variant, of the seeds that all rows of the table share."""
    columns: dict[str, list[float]]
    """Accuracies of those in %, by column."""
    outdated: list[str]
    """Runs whose config is no longer the experiment's."""

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Returns the shown results of all variants."""
        return [run for shown in self.shown.values() for run in shown]


@dataclass(frozen=True)
class TableResults:
    """The results of a table."""

    rows: dict[LoopPlan, RowResults]
    seeds: dict[str, list[int]]
    """The seeds that all measured rows share, by variant; empty where they share none."""

    @classmethod
    def read(cls, experiment: Experiment, scale: Scale, results: Path) -> TableResults:
        """Reads the result files of all rows."""
        found = {row.plan: _results_of(experiment, scale, row, results) for row in experiment.rows}
        seeds = {
            variant: _shared_seeds(every[variant] for every, _ in found.values()) for variant in experiment.variants
        }
        rows = {}
        for plan, (every, outdated) in found.items():
            shown, columns = {}, {}
            for variant, by_seed in every.items():
                # Rows that share no seed cannot be compared; then each shows what it has.
                chosen = [by_seed[seed] for seed in seeds[variant] or by_seed if seed in by_seed]
                if chosen:
                    shown[variant] = chosen
                    for test, column in experiment.columns_of(variant, scale).items():
                        columns[column] = [100 * run["result"]["accuracies"][test] for run in chosen]
            rows[plan] = RowResults(every, shown, columns, outdated)
        return cls(rows, seeds)


def _results_of(
    experiment: Experiment, scale: Scale, row: Row, results: Path
) -> tuple[dict[str, dict[int, dict[str, Any]]], list[str]]:
    """Returns all results of a row, by variant and seed, and the names of those with an outdated config."""
    every: dict[str, dict[int, dict[str, Any]]] = {variant: {} for variant in experiment.variants}
    outdated = []
    for variant in experiment.variants:
        for seed in range(MOST_SEEDS):
            job = Job(experiment, scale, row, variant, seed)
            result = job.read_result(results)
            if result is not None:
                every[variant][seed] = result
                if result["result"]["config"] != codec.fingerprint(job.config.resolved()):
                    outdated.append(job.name)
    return every, outdated


def _shared_seeds(by_row: Iterable[dict[int, Any]]) -> list[int]:
    """Returns the seeds that are in all rows, but for rows without any."""
    measured = [set(by_seed) for by_seed in by_row if by_seed]
    return sorted(set.intersection(*measured)) if measured else []


def _gap(plan: LoopPlan, columns: Sequence[str], values: dict[LoopPlan, dict[str, float]]) -> float | None:
    """Returns the % gap of a looped row, by the mean over the columns; None where a number is missing."""
    if plan.depth == plan.distinct_layers:
        return None
    rows = [values.get(one, {}) for one in (plan, plan.iso_param, plan.iso_flop)]
    if any(column not in row for row in rows for column in columns):
        return None
    looped, iso_param, iso_flop = (sum(row[column] for column in columns) / len(columns) for row in rows)
    return percent_gap(looped, iso_param, iso_flop) if iso_flop > iso_param else None


def _notes(experiment: Experiment, scale: Scale, measured: TableResults) -> list[str]:
    notes = [
        "Accuracy in %, ours (the paper's, difference).",
        "% gap by the mean over the columns; in brackets what follows from the paper's numbers: it prints none.",
    ]
    if not any(row.paper for row in experiment.rows):
        notes = ["Accuracy in %; % gap by the mean over the columns. The paper has no such table."]
    elif scale == "cpu":
        notes[0] = "Accuracy in %, ours (the paper's)."
        notes.append("At this scale the task and the models are smaller than the paper's: look at the pattern alone.")
    notes.append("Steps of each run; to 99%: the step at which its validation first had that; seconds of all runs.")
    rows = measured.rows.values()
    if any(row.shown for row in rows):
        notes += _seed_notes(experiment, measured)
    outdated = [name for row in rows for name in row.outdated]
    if outdated:
        notes.append(f"Measured with settings that have changed since: {', '.join(outdated)}.")
    for key, what in (("hardware", "On"), ("torch", "torch"), ("loopt", "loopt")):
        seen = sorted({run["result"][key] for row in rows for run in row.runs})
        if seen:
            notes.append(f"{what} {', '.join(seen)}.")
    return notes


def _seed_notes(experiment: Experiment, measured: TableResults) -> list[str]:
    """Returns the notes on seeds: which the table shows, the best of them, and those of some rows only."""
    shared = {variant: seeds for variant, seeds in measured.seeds.items() if seeds}
    notes = []
    if not shared:
        notes.append("Rows share no seed, so they cannot be compared; each shows its own.")
    elif all(seeds == [0] for seeds in shared.values()):
        notes.append("One seed each.")
    else:
        listed = "; ".join(" ".join([variant, *map(str, seeds)]).strip() for variant, seeds in shared.items())
        notes.append(f"Mean [range] over the seeds that all rows have: {listed}.")
    if experiment.best_of > 1:
        notes.append(f"The paper reports the best of {experiment.best_of} seeds.")
        best = [text for plan, row in measured.rows.items() for text in _best_seed(plan, row)]
        if best:
            notes.append(f"Ours that is best on validation has, on test: {'; '.join(best)}.")
    further = [text for plan, row in measured.rows.items() for text in _all_seeds(plan, row)]
    if further:
        notes.append(f"Noise, the mean accuracy of every seed of rows that have more: {'; '.join(further)}.")
    return notes


def _best_seed(plan: LoopPlan, row: RowResults) -> list[str]:
    """Returns, for each variant with several shown seeds, the test accuracy of the one that is best on validation."""
    return [
        _labelled(plan, variant, f"{100 * max(runs, key=_best_validation)['result']['accuracy']:.1f}")
        for variant, runs in row.shown.items()
        if len(runs) > 1
    ]


def _all_seeds(plan: LoopPlan, row: RowResults) -> list[str]:
    """Returns the accuracy of every seed, for variants of which not all seeds are shown."""
    return [
        _labelled(plan, variant, ", ".join(f"{100 * run['result']['accuracy']:.1f}" for run in by_seed.values()))
        for variant, by_seed in row.every.items()
        if len(by_seed) > len(row.shown.get(variant, []))
    ]


def _labelled(plan: LoopPlan, variant: str, numbers: str) -> str:
    return " ".join(filter(None, (plan.typography, variant, numbers)))


def _best_validation(result: dict[str, Any]) -> float:
    return max((accuracy for _, accuracy, _ in result["curve"]), default=0.0)
