"""loopt eval RUN"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table

from loopt.commands.parsing import parse_options
from loopt.devices import DeviceName, pick_device
from loopt.evaluation import score_tests
from loopt.plan import InputError
from loopt.runs import Run


@dataclass(frozen=True)
class Options:
    """Measure a trained model on examples it was not trained on. For example:

    loopt eval runs/phop-cpu --loops 1 2 3 4 8
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    loops: tuple[int, ...] = ()
    """How often to run the loopable block, a row for each; the plan's own number unless given."""
    checkpoint: str = "best"
    """best, last, or a step."""
    split: Literal["validation", "test"] = "test"
    examples: int = 8192
    device: DeviceName = "auto"


def main(arguments: list[str]) -> int:
    options = parse_options(Options, arguments, "loopt eval")
    if options.examples < 1:
        raise InputError(f"examples={options.examples}: allowed is 1 or more")
    run = Run.load(options.run)
    step = run.find(_which(options.checkpoint)).step
    trained = run.config.model.plan
    plans = [trained.with_loops(n) for n in options.loops] or [trained]
    model = run.load_model(step).to(pick_device(options.device))
    title = f"{options.run}, step {step}: {options.examples} {options.split} examples"
    table = Table(title=title, title_justify="left")
    for column in ("plan", "test", "accuracy", "loss"):
        table.add_column(column, justify="right")
    for plan, loops in zip(plans, options.loops or [None], strict=True):
        scores = score_tests(model, run.config.task, options.split, options.examples, run.config.batch_size, loops)
        name = f"{plan} (trained)" if plan == trained else str(plan)
        for test, score in scores.items():
            table.add_row(name, test, f"{score.accuracy:.2%}", f"{score.loss:.4f}")
    Console().print(table)
    return 0


def _which(checkpoint: str) -> Literal["best", "last"] | int:
    if checkpoint.isdecimal():
        return int(checkpoint)
    match checkpoint:
        case "best" | "last":
            return checkpoint
    raise InputError(f"checkpoint={checkpoint}: allowed is best | last | a step, such as 500")
