"""loopt analyze probe RUN"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import tyro
from rich.table import Table

from loopt.analysis.exploration import MOST_STEPS
from loopt.analysis.latents import steps_trained
from loopt.analysis.probes import Score, fit_probes
from loopt.commands.analyze.output import write_csv
from loopt.commands.parsing import checkpoint_named, parse_options
from loopt.devices import DeviceName, pick_device
from loopt.errors import InputError, require
from loopt.report.probe_figure import draw_probes
from loopt.report.screen import printable, screen
from loopt.runs import Run
from loopt.tasks import Task
from loopt.tasks.after_start import without_start


@dataclass(frozen=True)
class Options:
    """Measure which true intermediate values of the task a linear probe reads from the state after each loop. Probes
    are fitted on validation examples and measured on test examples; beside each stands what a probe of the same kind
    reads of random labels, the control task. Writes probe.csv, probe.svg and probe.png. For example:

    loopt analyze probe runs/phop-cpu

    loopt analyze probe runs/phop-cpu --loops 8 --examples 1024
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    loops: int | None = None
    """After how many loops to read; those of training unless given."""
    examples: int = 256
    """How many examples to fit on, and how many others to measure on."""
    checkpoint: str = "best"
    """best, last, or a step."""
    device: DeviceName = "auto"
    """Where to run the model."""
    out: Path | None = None
    """Directory of the files; the run's unless given."""


def main(name: str, arguments: list[str]) -> None:
    options = parse_options(Options, arguments, f"loopt analyze {name}")
    require(1 <= options.examples <= 100_000, "examples", options.examples, "1 to 100000", InputError)
    if options.loops is not None:
        require(1 <= options.loops <= MOST_STEPS, "loops", options.loops, f"1 to {MOST_STEPS}", InputError)
    run = Run.load(options.run)
    if not isinstance(run.config.source, Task):
        raise InputError(f"run {options.run}: was trained on text; allowed are runs on a task, whose values are known")
    task, start = without_start(run.config.source)
    model = run.load_model(checkpoint_named(options.checkpoint)).eval().to(pick_device(options.device))
    with screen(stderr=True).status("fitting probes") as status:
        scores = fit_probes(model, task, options.loops, options.examples, start, say=status.update).scores
    by = "layer" if all(block.loops == 1 for block in model.config.plan.blocks) else "loop"
    title = f"{printable(options.run)}: accuracy of linear probes after each {by}, with the control task's in brackets"
    screen().print(_table(title, scores, by, steps_trained(model)))
    rows = [asdict(score) for score in scores]
    write_csv(options.out or options.run, "probe", rows, lambda to: draw_probes(scores, by, to))


def _table(title: str, scores: list[Score], by: str, trained: int) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("read")
    steps = sorted({score.step for score in scores})
    for step in steps:
        beyond = " +" if step > trained else ""
        table.add_column("input" if step == 0 else f"{by} {step}{beyond}", justify="right")
    table.add_column("most frequent", justify="right")
    for quantity in dict.fromkeys(score.quantity for score in scores):
        found = [score for score in scores if score.quantity == quantity]
        cells = [f"{score.accuracy:.1%} ({score.control:.0%})" for score in found]
        table.add_row(quantity, *cells, f"{found[0].baseline:.1%}")
    return table
