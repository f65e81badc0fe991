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
from loopt.report.figures import Spread
from loopt.report.sheet import Cell, Line, Sheet
from loopt.reproduce.experiment import Experiment, Job, Row, Scale

MOST_SEEDS = 100
SOLVED = 0.99


def by_loops(experiment: Experiment, scale: Scale, results: Path) -> dict[str, dict[str, dict[int, Spread]]]:
    """Returns accuracy in % by the number of loops at inference, over the seeds that were tested so, for each row and
    each of its columns."""
    found: dict[str, dict[str, dict[int, Spread]]] = {}
    measured = TableResults.read(experiment, scale, results)
    for row in experiment.rows:
        for variant, shown in measured.rows[row.name].shown.items():
            tested = [run["by_loops"] for run in shown if "by_loops" in run]
            for test, column in experiment.columns_of(variant, scale).items() if tested else ():
                shares = {n: [run[n][test] for run in tested if n in run] for n in tested[0]}
                curve = {int(n): Spread.of([100 * share for share in of_seeds]) for n, of_seeds in shares.items()}
                found.setdefault(row.label, {})[experiment.in_words.get(column, column)] = curve
    return found


def by_difficulty(experiment: Experiment, scale: Scale, results: Path) -> dict[LoopPlan, dict[str, Spread]]:
    """Returns accuracy in % by difficulty: the mean over the seeds that the table shows, and the range of all; for rows
    of one run a seed."""
    curves = {}
    measured = TableResults.read(experiment, scale, results)
    for plan, row in ((row.plan, measured.rows[row.name]) for row in experiment.rows):
        if len(row.shown) == 1 and all("by_difficulty" in run for run in row.runs):
            (variant,) = row.shown
            shown = [run["by_difficulty"] for run in row.runs]
            every = [run.get("by_difficulty", {}) for run in row.every[variant].values()]
            curves[plan] = {
                name: Spread.of([100 * run[name] for run in shown], [100 * run[name] for run in every if name in run])
                for name in shown[0]
                if all(name in run for run in shown)
            }
    return curves


def build_sheet(experiment: Experiment, scale: Scale, results: Path) -> Sheet:
    """Returns the table from the result files alone; rows that are not measured yet have no numbers of ours."""
    columns = experiment.columns(scale)
    measured = TableResults.read(experiment, scale, results)
    means, paper = measured.means, {row.name: row.paper for row in experiment.rows}
    lines = []
    for row in experiment.rows:
        ours, comparable = measured.rows[row.name], scale in experiment.comparable
        gap = Cell.of([_gap(row, columns, means)], _gap(row, columns, paper), comparable)
        runs = ours.runs
        lines.append(
            Line(
                name=row.label,
                looped=row.looped,
                parameters=runs[0]["result"]["parameters"] if runs else None,
                flops=runs[0]["result"]["flops"] if runs else None,
                cells=[
                    Cell.of(ours.columns.get(name, []), row.paper.get(name), comparable, every=ours.noise.get(name, ()))
                    for name in columns
                ],
                gap=gap if row.looped else None,
                seeds=max((len(shown) for shown in ours.shown.values()), default=0),
                steps=[run["result"]["step"] for run in runs],
                solved=[solved_at(run) for run in runs],
                seconds=sum(run["result"]["seconds"] for run in runs) if runs else None,
            )
        )
    headings = experiment.headings(scale)
    return Sheet(
        title=f"{experiment.title}, scale {scale}",
        columns=headings,
        lines=lines,
        notes=_notes(experiment, scale, measured),
        in_words=tuple(experiment.in_words.get(heading, heading) for heading in headings),
    )


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
    noise: dict[str, list[float]]
    """Accuracies of every seed in %, by column, where there are several."""
    outdated: list[str]
    """Runs whose config is no longer the experiment's."""
    strangers: list[str]
    """Runs left out, since they were trained on other tokens than the first row's, or in another order."""

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Returns the shown results of all variants."""
        return [run for shown in self.shown.values() for run in shown]


@dataclass(frozen=True)
class TableResults:
    """The results of a table."""

    rows: dict[str, RowResults]
    """By the name of the row."""
    seeds: dict[str, list[int]]
    """The seeds that all measured rows share, by variant; empty where they share none."""

    @property
    def means(self) -> dict[str, dict[str, float]]:
        """Returns the mean over seeds, by row and column."""
        return {
            name: {column: fmean(values) for column, values in row.columns.items()} for name, row in self.rows.items()
        }

    @classmethod
    def read(cls, experiment: Experiment, scale: Scale, results: Path) -> TableResults:
        """Reads the result files of all rows."""
        tokens: dict[tuple[str, int], str] = {}
        found = {row.name: _results_of(experiment, scale, row, results, tokens) for row in experiment.rows}
        seeds = {
            variant: _shared_seeds(every[variant] for every, _, _ in found.values()) for variant in experiment.variants
        }
        rows = {}
        for name, (every, outdated, strangers) in found.items():
            shown: dict[str, list[dict[str, Any]]] = {}
            columns: dict[str, list[float]] = {}
            noise: dict[str, list[float]] = {}
            for variant, by_seed in every.items():
                # Rows that share no seed cannot be compared; then each shows what it has.
                chosen = [by_seed[seed] for seed in seeds[variant] or by_seed if seed in by_seed]
                if chosen:
                    shown[variant] = chosen
                    tests = experiment.columns_of(variant, scale)
                    columns |= _by_column([experiment.measurement.values(run) for run in chosen], tests)
                    if len(by_seed) > 1:
                        every_seed = [experiment.measurement.values(run) for run in by_seed.values()]
                        noise |= _by_column(every_seed, tests)
            rows[name] = RowResults(every, shown, columns, noise, outdated, strangers)
        return cls(rows, seeds)


def _by_column(values: Sequence[dict[str, float]], tests: dict[str, str]) -> dict[str, list[float]]:
    """Returns the numbers of some runs by column, of the tests that all of them have."""
    return {
        column: [of_run[test] for of_run in values]
        for test, column in tests.items()
        if all(test in of_run for of_run in values)
    }


def _results_of(
    experiment: Experiment, scale: Scale, row: Row, results: Path, tokens: dict[tuple[str, int], str]
) -> tuple[dict[str, dict[int, dict[str, Any]]], list[str], list[str]]:
    """Returns all results of a row, by variant and seed, the names of those with an outdated config, and of those that
    are left out. ``tokens`` has what the rows before were trained on, by variant and seed, and gets what is new."""
    every: dict[str, dict[int, dict[str, Any]]] = {variant: {} for variant in experiment.variants}
    measurement = experiment.measurement
    outdated, strangers = [], []
    for variant in experiment.variants:
        for seed in range(MOST_SEEDS):
            job = Job(experiment, scale, row, variant, seed)
            result = job.read_result(results)
            if result is None:
                continue
            trained_on = measurement.tokens(result)
            if tokens.setdefault((variant, seed), trained_on) != trained_on:
                strangers.append(job.name)
                continue
            every[variant][seed] = result
            if not measurement.is_current(job.config, result):
                outdated.append(job.name)
    return every, outdated, strangers


def _shared_seeds(by_row: Iterable[dict[int, Any]]) -> list[int]:
    """Returns the seeds that are in all rows, but for rows without any."""
    measured = [set(by_seed) for by_seed in by_row if by_seed]
    return sorted(set.intersection(*measured)) if measured else []


def _gap(row: Row, columns: Sequence[str], values: dict[str, dict[str, float]]) -> float | None:
    """Returns the % gap of a looped row, by the mean over the columns; None where a number is missing."""
    if not row.looped:
        return None
    rows = [values.get(name, {}) for name in (row.name, str(row.plan.iso_param), str(row.plan.iso_flop))]
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
    return notes + notes_on_runs(measured)


def notes_on_runs(measured: TableResults) -> list[str]:
    """Returns the notes on where and how the runs behind a table were made."""
    rows, notes = measured.rows.values(), []
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
        best = [text for row in experiment.rows for text in _best_seed(row, measured.rows[row.name])]
        if best:
            notes.append(f"Ours that is best on validation has, on test: {'; '.join(best)}.")
    further = [text for row in experiment.rows for text in _all_seeds(row, measured.rows[row.name])]
    if further:
        notes.append(f"Noise, the mean accuracy of every seed of rows that have more: {'; '.join(further)}.")
    return notes


def _best_seed(row: Row, found: RowResults) -> list[str]:
    """Returns, for each variant with several shown seeds, the test accuracy of the one that is best on validation."""
    return [
        _labelled(row, variant, f"{100 * max(runs, key=_best_validation)['result']['accuracy']:.1f}")
        for variant, runs in found.shown.items()
        if len(runs) > 1
    ]


def _all_seeds(row: Row, found: RowResults) -> list[str]:
    """Returns the accuracy of every seed, for variants of which not all seeds are shown."""
    return [
        _labelled(row, variant, ", ".join(f"{100 * run['result']['accuracy']:.1f}" for run in by_seed.values()))
        for variant, by_seed in found.every.items()
        if len(by_seed) > len(found.shown.get(variant, []))
    ]


def _labelled(row: Row, variant: str, numbers: str) -> str:
    return " ".join(filter(None, (row.label_in_text, variant, numbers)))


def _best_validation(result: dict[str, Any]) -> float:
    return max((accuracy for _, accuracy, _ in result["curve"]), default=0.0)
