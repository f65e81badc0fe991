"""loopt eval RUN"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro
from rich.live import Live
from rich.table import Table

from loopt.analysis.loops import task_points, text_points
from loopt.commands.parsing import checkpoint_named, parse_options
from loopt.devices import DeviceName, pick_device
from loopt.errors import InputError, require
from loopt.limits import LARGEST
from loopt.model import LoopedTransformer
from loopt.plan import LoopPlan
from loopt.report.screen import printable, screen
from loopt.runs import Run
from loopt.scoring import perplexity
from loopt.tasks import Task, known
from loopt.text.source import Text

Plans = dict[int | None, LoopPlan]  # by number of loops; None is for the plan of training
Rows = Iterator[tuple[LoopPlan, list[str]]]


@dataclass(frozen=True)
class Options:
    """Measure a trained model on examples it was not trained on. For example:

    loopt eval runs/phop-cpu --loops 1 2 3 4 8

    For a language model this is the perplexity on held-out text. The paper's 19 downstream tasks:

    loopt eval RUN --suite paper --limit 200

    and their stages, one at a time: loopt eval render | predict | score. Each has a --help of its own.
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    loops: tuple[int, ...] = ()
    """Numbers of loops to run, a row for each; the plan's own unless given."""
    checkpoint: str = "best"
    """best, last, or a step."""
    by_difficulty: bool = False
    """A row for each difficulty of the task: in i-GSM, how many operations an answer takes, or, of the
    law even, how many statements it needs."""
    split: Literal["validation", "test"] = "test"
    """test, or validation, which chose the best checkpoint."""
    examples: int = 8192
    """Number of examples, or of sequences of text: at most all that were held out."""
    data: str | None = None
    """Where the text is now, if it has moved since training."""
    device: DeviceName = "auto"
    """Where to run the model."""


SUITE = ("--suite", "--hf", "--show-prompt")
"""Options that only the downstream tasks have."""
STAGES = ("render", "predict", "score")
"""Words that name a stage; a run of that name is ./render."""


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in STAGES:
        from loopt.commands import eval_stages  # imported only where it is used, as commands are

        return eval_stages.STAGES[arguments[0]](arguments[1:])
    if any(word.partition("=")[0] in SUITE for word in arguments):
        from loopt.commands import eval_suite

        return eval_suite.main(arguments)
    options = parse_options(Options, arguments, "loopt eval")
    require(1 <= options.examples <= LARGEST, "examples", options.examples, f"1 to {LARGEST}", InputError)
    run = Run.load(options.run)
    source = run.config.source
    graded = isinstance(source, Task) and bool(source.difficulties)
    if options.by_difficulty and not graded:
        graded_ones = [name for name, task in known().items() if task().difficulties]
        allowed = f"a run of {' | '.join(graded_ones)}"
        if source.name in graded_ones:
            allowed = "one with query=last"
        raise InputError(f"by-difficulty: this {source.name} has no difficulties to tell apart; allowed is {allowed}")
    step = run.find(checkpoint_named(options.checkpoint)).step
    trained = run.config.plan_of_checkpoint(step)
    plans: Plans = {loops: trained.with_loops(loops) for loops in options.loops} or {None: trained}
    model = run.load_model(step).to(pick_device(options.device))
    columns, rows = _measurement(run, model, options, plans)
    table = Table(*columns, title=f"{printable(options.run)}, step {step}, {options.split}", title_justify="left")
    for column in table.columns:
        column.justify = "right"
    console = screen()
    with Live(table, console=console):  # shows each row as soon as it is measured
        for plan, cells in rows:
            table.add_row(f"{plan} (trained)" if plan == trained else str(plan), *cells)
    if not console.is_terminal:
        console.line()  # Live ends without a newline there
    return 0


def _measurement(run: Run, model: LoopedTransformer, options: Options, plans: Plans) -> tuple[tuple[str, ...], Rows]:
    """Returns the columns of the table, and its rows, which are measured one by one."""
    match run.config.source:
        case Task() as task:
            return ("plan", "test", "examples", "accuracy", "loss"), _on_task(task, model, options, plans)
        case Text() as text:
            text = replace(text, data=options.data or text.data).prepared(options.run)
            return ("plan", "tokens", "perplexity", "loss"), _on_text(text, model, options, plans)
    raise TypeError(run.config.source)


def _on_task(task: Task, model: LoopedTransformer, options: Options, plans: Plans) -> Rows:
    tests = task.difficulties if options.by_difficulty else task.tests
    for point in task_points(model, tests, list(plans), options.split, options.examples):
        assert point.accuracy is not None
        yield model.plan_with(point.loops), [point.test, str(point.count), f"{point.accuracy:.2%}", f"{point.loss:.4f}"]


def _on_text(text: Text, model: LoopedTransformer, options: Options, plans: Plans) -> Rows:
    for point in text_points(model, text, list(plans), options.split, options.examples):
        yield plans[point.loops], [f"{point.count:,}", f"{perplexity(point.loss):.3f}", f"{point.loss:.4f}"]
