"""loopt eval RUN --suite paper"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from loopt.commands.eval_model import check_choice, open_models, results_folder
from loopt.commands.parsing import parse_options
from loopt.devices import DeviceName
from loopt.errors import InputError, require
from loopt.evaluation.catalogue import GROUP_TITLES, GROUPS, TASKS, select
from loopt.evaluation.measure import Report, measure_suite, render_suite
from loopt.evaluation.mini_sets import mini_data_dir
from loopt.evaluation.predict import prompt_text
from loopt.evaluation.rendering import render
from loopt.evaluation.scores import Figure, MeanScore, SuiteScores, TaskScore
from loopt.limits import LARGEST
from loopt.report.screen import printable, screen


@dataclass(frozen=True)
class Options:
    """Measure a language model on the paper's downstream tasks. For example:

    loopt eval runs/lm-75m --suite paper --limit 200 --data-dir data/evals

    loopt eval runs/lm-75m --suite math_word_problems triviaqa --loops 1 6 12

    loopt eval --hf EleutherAI/pythia-70m --suite primitives

    loopt eval --show-prompt svamp --data-dir data/evals

    Every task has its metric, in percent, and the bits per byte of the right answer. What was measured before, with the
    same weights, settings and data, is not measured again.
    """

    run: tyro.conf.Positional[Path | None] = None
    """Directory of a language model's run."""
    suite: tuple[str, ...] = ()
    """paper for all 19 tasks, or groups (closed_book, open_book, math_word_problems, primitives), or tasks."""
    hf: str | None = None
    """In place of RUN: a Hugging Face model, by name or directory."""
    data_dir: Path | None = None
    """Folder of the data sets, one folder for each; the Hugging Face hub unless given. docs/evaluation.md says how
    files look."""
    limit: int | None = None
    """The most examples of each task; all unless given."""
    loops: tuple[int, ...] = ()
    """Numbers of loops to run, a table for each; the plan's own unless given."""
    likelihood_only: bool = False
    """Measure bits per byte alone, and generate nothing."""
    show_prompt: str | None = None
    """Print the first prompt of a task as a model sees it, of an invented mini-set unless --data-dir is given, and
    measure nothing."""
    out: Path | None = None
    """Where results go; RUN/eval unless given, for --hf runs/hf/NAME/eval."""
    checkpoint: str = "best"
    """best, last, or a step."""
    device: DeviceName = "auto"
    """Where to run the model; on cuda it runs in bfloat16."""
    trust_remote_code: bool = False
    """Run the code that a Hugging Face model brings along."""


def main(arguments: list[str]) -> int:
    options = parse_options(Options, arguments, "loopt eval --suite paper")
    require_limit(options.limit)
    if options.show_prompt is not None:
        return _show_prompt(options.show_prompt, options.data_dir)
    check_choice(options.run, options.hf, options.loops)
    requests = render_suite(options.suite, options.data_dir, options.limit)
    chosen = (options.run, options.hf, options.loops, options.checkpoint, options.device, options.trust_remote_code)
    folder = options.out or results_folder(options.run, options.hf)
    for name, measured in open_models(*chosen):
        place = folder / "-".join([name, *([f"limit-{options.limit}"] if options.limit else [])])
        place = place.with_name(f"{place.name}-likelihood") if options.likelihood_only else place
        title = "+".join(options.suite)
        with _progress() as report:
            scores = measure_suite(
                measured, requests, place, title, generate=not options.likelihood_only, report=report
            )
        heading = printable(options.hf or f"{options.run}, {name}, plan {measured.identity['plan']}")
        screen().print(table_of(scores, heading))
        print(f"{printable(place / f'{title}.json')}", file=sys.stderr)
        del measured  # and with it the caches of its engines, before the next number of loops makes its own
    return 0


def require_limit(limit: int | None) -> None:
    require(limit is None or 1 <= limit <= LARGEST, "limit", limit, f"1 to {LARGEST}", InputError)


def _show_prompt(name: str, data_dir: Path | None) -> int:
    if name not in TASKS:
        raise InputError(f"show-prompt: no task {printable(name[:40])}; allowed are {', '.join(TASKS)}")
    (task,) = select([name])
    (request,) = render(task, data_dir or mini_data_dir(), 1)
    print(prompt_text(request))
    shown = ", ".join(repr(stop) for stop in request.stop)
    print(
        f"\n-- {len(request.shots)} shots, then the question. Right: {' | '.join(request.golds)}. An answer ends at "
        f"{shown} or after {request.max_new_tokens} tokens; what precedes all is the token that ends a document.",
        file=sys.stderr,
    )
    return 0


@contextmanager
def _progress() -> Iterator[Report]:
    """Shows a bar while a task is measured, and its scores on a line when it is done."""
    console = screen(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn())
    began = time.monotonic()
    with Progress(*columns, TimeRemainingColumn(compact=True), console=console, transient=True) as display:
        bar = display.add_task("", visible=False)

        def report(task: str, done: int, total: int, found: TaskScore | None) -> None:
            display.update(bar, description=task, completed=done, total=total, visible=found is None)
            if found is not None:
                score = "" if found.score is None else f"{found.metric} {found.score.value:.2f}, "
                figures = f"{score}{found.bits_per_byte.value:.3f} bits per byte"
                console.print(
                    f"{task}: {figures}, {total} examples, after {time.monotonic() - began:.1f} s", soft_wrap=True
                )

        yield report


def table_of(scores: SuiteScores, title: str) -> Table:
    """Returns the table of a suite: the tasks by group, the means of groups, and of all. Standard errors stand behind
    the figures, and of the shots how many fitted, on average."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("task", "metric", "score", "bits/byte", "n", "shots"):
        table.add_column(column, justify="left" if column in ("task", "metric") else "right", no_wrap=True)
    for group in GROUPS:
        found = [one for one in scores.tasks.values() if TASKS[one.task].group == group]
        for one in found:
            fitted = one.shots - one.shots_dropped / one.examples
            shots = f"{fitted:.1f} of {one.shots}" if one.shots_dropped else str(one.shots)
            figures = _cell(one.score, 1), _cell(one.bits_per_byte, 3)
            table.add_row(one.task, one.metric, *figures, f"{one.examples:,}", shots)
        if group in scores.groups:
            _add_mean(table, GROUP_TITLES[group], scores.groups[group])
        elif found:
            table.add_section()
    if scores.all_tasks:
        _add_mean(table, "All Tasks", scores.all_tasks)
    cut = [f"{one.questions_cut:,} of {one.task}" for one in scores.tasks.values() if one.questions_cut]
    table.caption = f"Questions that had to be cut: {', '.join(cut)}" if cut else None
    return table


def _add_mean(table: Table, title: str, mean: MeanScore) -> None:
    table.add_row(title, f"mean of {mean.tasks}", _cell(mean.score, 1), _cell(mean.bits_per_byte, 3), style="bold")
    table.add_section()


def _cell(figure: Figure | None, digits: int) -> str:
    if figure is None:
        return ""
    error = "" if figure.standard_error is None else f" ±{figure.standard_error:.{digits}f}"
    return f"{figure.value:.{digits}f}{error}"
