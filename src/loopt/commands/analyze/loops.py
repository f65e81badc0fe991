"""loopt analyze loops RUN"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro
from rich.table import Table

from loopt.analysis.loops import LoopPoint, task_points, text_points
from loopt.commands.analyze.output import write_csv
from loopt.commands.parsing import checkpoint_named, parse_options
from loopt.devices import DeviceName, pick_device
from loopt.errors import InputError, require
from loopt.limits import LARGEST
from loopt.model import LoopedTransformer
from loopt.plan import LoopPlan
from loopt.report.by_loops import draw_by_loops
from loopt.report.figures import Spread
from loopt.report.screen import printable, screen
from loopt.runs import Run
from loopt.scoring import perplexity
from loopt.tasks import Task
from loopt.text.source import Text


@dataclass(frozen=True)
class Options:
    """Measure a run with several numbers of loops, as loopt eval RUN --loops does, and draw it: accuracy, or for text
    perplexity, against loops, with the trained number marked. Writes loops.csv, loops.svg and loops.png. For example:

    loopt analyze loops runs/phop-cpu --loops 1 2 3 4 6 8 12
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    loops: tuple[int, ...] = ()
    """Numbers of loops; from 1 to twice those of training unless given."""
    checkpoint: str = "best"
    """best, last, or a step."""
    split: Literal["validation", "test"] = "test"
    """test, or validation, which chose the best checkpoint."""
    examples: int = 2048
    """Number of examples of each test, or of sequences of text: at most all that were held out."""
    data: str | None = None
    """Where the text is now, if it has moved since training."""
    device: DeviceName = "auto"
    """Where to run the model."""
    out: Path | None = None
    """Directory of the files; the run's unless given."""


def main(name: str, arguments: list[str]) -> None:
    options = parse_options(Options, arguments, f"loopt analyze {name}")
    require(1 <= options.examples <= LARGEST, "examples", options.examples, f"1 to {LARGEST}", InputError)
    run = Run.load(options.run)
    step = run.find(checkpoint_named(options.checkpoint)).step
    plan = run.config.plan_of_checkpoint(step)
    _, looped, _ = plan.around_loop()
    trained = len(looped)
    asked = sorted(set(options.loops)) or list(range(1, 2 * trained + 1))
    plans = {loops: plan.with_loops(loops) for loops in asked}  # a number that cannot run is refused before any work
    model = run.load_model(step).to(pick_device(options.device))
    points = []
    with screen(stderr=True).status("measuring") as status:
        for point in _measurement(run, model, options, list(asked)):
            status.update(f"measured {point.test} with {point.loops} loops")
            points.append(point)
    screen().print(_table(f"{printable(options.run)}, step {step}, {options.split}", points, plans, trained))
    rows = [_row(point, plans) for point in points]
    curves: dict[str, dict[int, Spread]] = {}
    for point in points:
        assert point.loops is not None
        curves.setdefault(point.test, {})[point.loops] = Spread.of([_quality(point)])
    quality = "accuracy, %" if points[0].accuracy is not None else "perplexity"
    write_csv(options.out or options.run, "loops", rows, lambda to: draw_by_loops({"": curves}, trained, to, quality))


def _measurement(run: Run, model: LoopedTransformer, options: Options, loops: list[int | None]) -> Iterator[LoopPoint]:
    match run.config.source:
        case Task() as task:
            return task_points(model, task.tests, loops, options.split, options.examples)
        case Text() as text:
            text = replace(text, data=options.data or text.data).prepared(options.run)
            return text_points(model, text, loops, options.split, options.examples)
    raise TypeError(run.config.source)


def _quality(point: LoopPoint) -> float:
    return perplexity(point.loss) if point.accuracy is None else 100 * point.accuracy


def _row(point: LoopPoint, plans: dict[int, LoopPlan]) -> dict[str, object]:
    assert point.loops is not None
    measured = {"loops": point.loops, "plan": str(plans[point.loops]), "test": point.test, "count": point.count}
    if point.accuracy is None:
        return measured | {"perplexity": perplexity(point.loss), "loss": point.loss}
    return measured | {"accuracy": point.accuracy, "loss": point.loss}


def _table(title: str, points: Sequence[LoopPoint], plans: dict[int, LoopPlan], trained: int) -> Table:
    is_task = points[0].accuracy is not None
    table = Table(title=title, title_justify="left")
    for column in ("plan", "test", "examples", "accuracy") if is_task else ("plan", "test", "tokens", "perplexity"):
        table.add_column(column, justify="right")
    for point in points:
        assert point.loops is not None
        plan = f"{plans[point.loops]} (trained)" if point.loops == trained else str(plans[point.loops])
        value = f"{point.accuracy:.2%}" if point.accuracy is not None else f"{perplexity(point.loss):.3f}"
        table.add_row(plan, point.test, f"{point.count:,}", value)
    return table
