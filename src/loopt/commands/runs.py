"""loopt runs, loopt runs compare RUN RUN ..., loopt runs clean"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.table import Table

from loopt.commands.parsing import choose, parse_options
from loopt.errors import InputError
from loopt.report.drawing import human, sparkline
from loopt.report.screen import printable, screen
from loopt.runs import Run
from loopt.runs.codec import differing, shown
from loopt.runs.folder import Summary, Unreadable, delete, doomed_in, runs_in, summary_of

USAGE = """\
usage: loopt runs
       loopt runs list [FOLDER]
       loopt runs compare RUN RUN ...
       loopt runs clean [FOLDER] [--finished] [--yes]

The runs in a folder: how far each is, what tells them apart, and what of them can be deleted. For example:

  loopt runs
  loopt runs compare runs/phop-cpu runs/two-by-two
  loopt runs clean runs --yes
"""
ROWS = 8
"""How many steps of the curves a comparison shows."""


@dataclass(frozen=True)
class ListOptions:
    """List the runs in a folder and the folders below. For example:

    loopt runs list

    loopt runs list runs/phop
    """

    folder: tyro.conf.Positional[Path] = Path("runs")
    """Where to look; runs unless given."""


@dataclass(frozen=True)
class CompareOptions:
    """Show in which settings runs differ, their validation curves side by side, and their final figures. For example:

    loopt runs compare runs/phop-cpu runs/two-by-two
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of two or more runs."""


@dataclass(frozen=True)
class CleanOptions:
    """Delete checkpoints that can be made again by training: all but the best, the last and those of --keep. A run that
    is being trained is left alone, and so is all that is no run. For example:

    loopt runs clean

    loopt runs clean runs/phop --finished --yes
    """

    folder: tyro.conf.Positional[Path] = Path("runs")
    """Where to look; runs unless given."""
    finished: bool = False
    """Of runs that have a result, delete all checkpoints: config, metrics and result stay, and the weights are gone."""
    yes: bool = False
    """Delete. Without this, print what would be deleted."""


def main(arguments: list[str]) -> int:
    match choose(arguments or ["list"], USAGE, "runs command", ["list", "compare", "clean"]):
        case ("list", rest):
            _list(parse_options(ListOptions, rest, "loopt runs list").folder)
        case ("compare", rest):
            _compare(parse_options(CompareOptions, rest, "loopt runs compare").runs)
        case ("clean", rest):
            _clean(parse_options(CleanOptions, rest, "loopt runs clean"))
    return 0


def _list(folder: Path) -> None:
    table = _table("run", "state", "source", "plan", "step", "best", "size", "age")
    found = list(runs_in(folder))
    summaries = [summary_of(run) for run in found if isinstance(run, Run)]
    for one in summaries:
        table.add_row(*_cells(one))
    if not found:
        print(f"{printable(folder)}: no runs; `loopt train phop-cpu` trains one")
        return
    if summaries:
        screen().print(table)
    print(f"{len(summaries)} runs, {human(sum(one.size for one in summaries))}B")
    _say_unreadable(found, "not listed")


def _say_unreadable(found: list[Run | Unreadable], what: str) -> None:
    for run in found:
        if isinstance(run, Unreadable):
            print(f"{what}: {printable(run.why)}")


def _cells(one: Summary) -> list[str]:
    config = one.run.config
    figures = [
        f"{one.step} of {config.steps}",
        one.best,
        f"{human(one.size)}B",
        _age(time.time() - one.changed),
    ]
    return [printable(one.run.directory), one.state, config.source.name, str(config.model.plan), *figures]


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _compare(directories: tuple[Path, ...]) -> None:
    if len(directories) < 2:
        raise InputError(f"runs={len(directories)}: allowed are two or more, as in loopt runs compare RUN RUN")
    runs = [Run.load(directory) for directory in directories]
    names = [printable(run.directory) for run in runs]
    settings = differing(*(run.config for run in runs))
    table = _table("setting", *names, title="Settings that differ" if settings else "All settings are the same")
    for name, values in settings.items():
        table.add_row(name, *("-" if value is None else shown(value) for value in values))
    screen().print(table) if settings else print(table.title)

    metric, curves = _curves(runs)
    table = _table("step", *names, title=f"{metric.replace('_', ' ')}")
    for step in _spread(sorted(set().union(*curves))):
        table.add_row(str(step), *(f"{curve[step]:.4f}" if step in curve else "" for curve in curves))
    low, high = _range(curves)
    table.add_section()
    table.add_row(f"{low:.3g} to {high:.3g}", *(sparkline(list(curve.values()), low, high) for curve in curves))
    screen().print(table)

    table = _table("result", *names, title="Final figures, on the test split")
    results = [run.read_result() or {} for run in runs]
    for name in ("accuracy", "perplexity", "loss", "best_step", "step", "parameters", "seconds"):
        if any(name in result for result in results):
            table.add_row(name.replace("_", " "), *(_figure(result.get(name)) for result in results))
    screen().print(table) if any(results) else print("None of them is finished")


def _curves(runs: list[Run]) -> tuple[str, list[dict[int, float]]]:
    """Returns the metric that all of them are validated by, and of each its value by step."""
    entries = [[entry for entry in run.read_metrics() if "validation_loss" in entry] for run in runs]
    for run, found in zip(runs, entries, strict=True):
        if not found:
            raise InputError(f"run {run.directory}: no evaluation yet, so nothing to compare")
    metrics = ("validation_accuracy", "validation_perplexity", "validation_loss")
    metric = next(name for name in metrics if all(name in found[0] for found in entries))
    values = [{one["step"]: one[metric] for one in found if one.get(metric) is not None} for found in entries]
    return metric, values


def _spread(steps: list[int]) -> list[int]:
    """Returns some of the steps, evenly spread, with the first and the last."""
    if len(steps) <= ROWS:
        return steps
    return [steps[round(i * (len(steps) - 1) / (ROWS - 1))] for i in range(ROWS)]


def _range(curves: list[dict[int, float]]) -> tuple[float, float]:
    values = [value for curve in curves for value in curve.values()] or [0.0]
    return min(values), max(values)


def _figure(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _clean(options: CleanOptions) -> None:
    found = list(runs_in(options.folder))
    doomed = [one for run in found if isinstance(run, Run) for one in doomed_in(run, options.finished)]
    for one in doomed:
        if options.yes:
            delete(one)
        print(f"{printable(one.run.directory)}: checkpoint of step {one.step}, {human(one.size)}B")
    total = f"{len(doomed)} checkpoints, {human(sum(one.size for one in doomed))}B"
    print(f"deleted {total}" if options.yes else f"would delete {total}; --yes does" if doomed else "nothing to delete")
    _say_unreadable(found, "left alone")


def _table(first: str, *columns: str, title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=True, overflow="fold")  # what tells rows apart
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table
