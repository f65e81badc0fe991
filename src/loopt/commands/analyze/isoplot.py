"""loopt analyze isoplot RUN..."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import tyro
from rich.table import Table

from loopt.analysis.isoplot import FIRST_FRACTION, IsoLine, IsoPoint, fit_isoplot, read_iso_points, wanted_steps
from loopt.commands.analyze.output import names_of, shown, write_json
from loopt.commands.eval_model import open_models
from loopt.commands.eval_suite import require_limit
from loopt.commands.parsing import parse_options
from loopt.devices import DeviceName
from loopt.errors import InputError, require
from loopt.evaluation.catalogue import GROUPS, TASKS
from loopt.evaluation.exchange import Request
from loopt.evaluation.looped import LoopedModel
from loopt.evaluation.measure import measure_suite, render_suite
from loopt.evaluation.scores import MeanScore, SuiteScores, TaskScore
from loopt.limits import LARGEST
from loopt.report.isoplot_figure import draw_isoplot
from loopt.report.screen import printable, screen
from loopt.runs import Run, checkpoint
from loopt.scoring import text_loss
from loopt.text.source import Text

LABELS = {"bits_per_byte": "bits per byte (less is better)", "score": "score, %"}


@dataclass(frozen=True)
class Options:
    """Measure every checkpoint of some runs from a fraction of training on: log-perplexity on held-out text, and the
    paper's downstream tasks; fit a line for each run and task group, and compare the runs at the same log-perplexity
    (the paper's Figures 2 and 7). Runs are to be trained with --keep at the steps to measure. Tasks that were measured
    before are not measured again. Writes isoplot.json, isoplot.svg and isoplot.png. For example:

    loopt analyze isoplot runs/4x1 runs/4x6 --suite primitives --limit 200
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of language models' runs, or result files of some that were measured along their training."""
    suite: tuple[str, ...] = ("paper",)
    """paper for all 19 tasks, or groups (closed_book, open_book, math_word_problems, primitives), or tasks."""
    metric: Literal["bits_per_byte", "score"] = "bits_per_byte"
    """bits_per_byte of the right answers, or the tasks' own scores, which are near zero for small models."""
    first: float = FIRST_FRACTION
    """The fraction of training from which on checkpoints are measured; the paper's is 0.3."""
    limit: int | None = 200
    """The most questions of each task."""
    examples: int = 256
    """Sequences of test text that log-perplexity is measured on, at most."""
    data_dir: Path | None = None
    """Folder of the tasks' data sets; the Hugging Face hub unless given."""
    data: str | None = None
    """Where the text is now, if it has moved since training."""
    device: DeviceName = "auto"
    """Where to run the model."""
    out: Path | None = None
    """Directory of the files; the first run's, or that of the first file, unless given."""


def main(name: str, arguments: list[str]) -> None:
    options = parse_options(Options, arguments, f"loopt analyze {name}")
    require_limit(options.limit)
    require(1 <= options.examples <= LARGEST, "examples", options.examples, f"1 to {LARGEST}", InputError)
    require(0 <= options.first <= 1, "first", options.first, "0 to 1, a fraction of training", InputError)
    names = names_of(options.runs)
    steps = {path: _steps_to_measure(path, options.first) for path in names if path.is_dir()}
    requests = render_suite(options.suite, options.data_dir, options.limit) if steps else []
    points: list[IsoPoint] = []
    for path, model in names.items():
        if path in steps:
            found: Iterable[IsoPoint] = _measure(path, steps[path], requests, options)
        else:
            found = read_iso_points(path, GROUPS, "/bits_per_byte" if options.metric == "bits_per_byte" else "")
        points += [replace(point, model=model) for point in found if point.fraction >= options.first]
    lines = fit_isoplot(points) if points else []
    if not lines:
        raise InputError(f"metric={options.metric}: no group or task has one in every point; allowed is another metric")
    screen().print(_table(lines, LABELS[options.metric]))
    data = {
        "metric": options.metric,
        "points": [asdict(point) for point in points],
        "lines": [asdict(line) for line in lines],
    }
    first = options.runs[0]
    folder = options.out or (first if first.is_dir() else first.parent)
    write_json(folder, "isoplot", data, lambda to: draw_isoplot(points, lines, LABELS[options.metric], to))


def _steps_to_measure(path: Path, first: float) -> list[int]:
    """Returns the steps of a run's checkpoints from a fraction of its training on; an InputError where they are fewer
    than the two that a line takes."""
    run = Run.load(path)
    if not isinstance(run.config.source, Text):
        raise InputError(f"{path}: trained on {run.config.source.name}; allowed is a run of a language model")
    steps = [step for step in checkpoint.steps_in(run.checkpoints) if step >= first * run.config.steps]
    if len(steps) < 2:
        keep = " ".join(map(str, wanted_steps(run.config.steps)))
        raise InputError(
            f"{path}: has {len(steps)} checkpoints from {first:.0%} of its training on; allowed are 2 or more: "
            f"train with --keep {keep}"
        )
    return steps


def _measure(path: Path, steps: Sequence[int], requests: Sequence[Request], options: Options) -> Iterator[IsoPoint]:
    """Yields the point of each checkpoint, as soon as it is measured."""
    run = Run.load(path)
    assert isinstance(run.config.source, Text)
    text = replace(run.config.source, data=options.data or run.config.source.data).prepared(path)
    with screen(stderr=True).status("measuring") as status:

        def report(task: str, done: int, total: int, found: TaskScore | None) -> None:
            status.update(f"{printable(path)}, step {step}: {task}, {done} of {total}")

        for step in steps:
            ((named, measured),) = open_models(path, None, (), str(step), options.device, False)
            assert isinstance(measured.model, LoopedModel)
            status.update(f"{printable(path)}, step {step}: log-perplexity")
            loss = text_loss(measured.model.model, text.tokens, "test", options.examples)
            generate = options.metric == "score"
            folder = path / "isoplot" / named
            scores = measure_suite(measured, requests, folder, "scores", generate=generate, report=report)
            yield IsoPoint(path.name, step / run.config.steps, loss, _by_group(scores, options.metric))


def _by_group(scores: SuiteScores, metric: Literal["bits_per_byte", "score"]) -> dict[str, float]:
    """Returns the groups that were measured whole, and every other task by itself."""
    alone = {name: task for name, task in scores.tasks.items() if TASKS[name].group not in scores.groups}
    every: dict[str, MeanScore | TaskScore] = {**scores.groups, **alone}
    figures = {name: one.score if metric == "score" else one.bits_per_byte for name, one in every.items()}
    return {name: figure.value for name, figure in figures.items() if figure is not None}


def _table(lines: Sequence[IsoLine], label: str) -> Table:
    at = lines[0].compared_at
    table = Table(title=f"{label}, as slope·log-perplexity + intercept, with 95% intervals", title_justify="left")
    for column in ("group", "run", "slope", "intercept", f"at log-perplexity {at:.3f}"):
        table.add_column(column, justify="left" if column in ("group", "run") else "right", overflow="fold")
    for line in lines:
        if line.fit is None:
            table.add_row(line.group, line.model, "no line: one log-perplexity", "", "")
            continue
        there = shown(line.score_there) + (" (extrapolated)" if line.extrapolated else "")
        slope = shown(line.fit.slope, line.fit.slope_interval, 3)
        table.add_row(line.group, line.model, slope, shown(line.fit.intercept, digits=3), there)
    return table
