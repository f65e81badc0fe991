"""loopt eval RUN"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import tyro
from rich.console import Console
from rich.live import Live
from rich.table import Table
from torch import Tensor

from loopt.commands.parsing import parse_options
from loopt.devices import DeviceName, pick_device
from loopt.errors import InputError
from loopt.evaluation import exact_match
from loopt.evaluation.perplexity import mean_loss, perplexity
from loopt.model import LoopedTransformer
from loopt.plan import LoopPlan
from loopt.runs import Run, TrainConfig
from loopt.tasks import registry
from loopt.text.token_data import TokenData
from loopt.training.text_work import LanguageLoss, open_data

Plans = dict[int | None, LoopPlan]
"""By the number of loops that the model is told to run; none for the plan it was trained with."""


@dataclass(frozen=True)
class Options:
    """Measure a trained model on examples it was not trained on. For example:

    loopt eval runs/phop-cpu --loops 1 2 3 4 8

    Of a language model this is the perplexity on the text that was held out.
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    loops: tuple[int, ...] = ()
    """How often to run the loopable block, a row for each; the plan's own number unless given."""
    checkpoint: str = "best"
    """best, last, or a step."""
    by_difficulty: bool = False
    """A row for each difficulty of the task, instead of one for all: of i-GSM, how many statements are needed."""
    split: Literal["validation", "test"] = "test"
    examples: int = 8192
    """How many examples, or sequences of text; of text at most all that was held out."""
    data: str | None = None
    """Where the text lies now, if not where the run found it."""
    device: DeviceName = "auto"


def main(arguments: list[str]) -> int:
    options = parse_options(Options, arguments, "loopt eval")
    if options.examples < 1:
        raise InputError(f"examples={options.examples}: allowed is 1 or more")
    run = Run.load(options.run)
    if options.by_difficulty and not (run.config.task and run.config.task.difficulties):
        what = f"task {run.config.task.name}" if run.config.task else "a language model"
        graded = " | ".join(name for name, task in registry.items() if task().difficulties)
        raise InputError(f"by-difficulty: {what} has no difficulties to tell apart; allowed is a run of {graded}")
    step = run.find(_which(options.checkpoint)).step
    trained = run.config.plan_of_checkpoint(step)
    plans: Plans = {loops: trained.with_loops(loops) for loops in options.loops} or {None: trained}
    model = run.load_model(step).to(pick_device(options.device))
    if run.config.task is not None:
        of: str = options.split
        columns: tuple[str, ...] = ("plan", "test", "examples", "accuracy", "loss")
        lines = _on_task(run.config, model, options, plans)
    else:
        of, columns = "held-out text", ("plan", "tokens", "perplexity", "loss")
        data = open_data(replace(run.config, data=options.data or run.config.data))
        lines = _on_text(run.config, data, model, options, plans)
    table = Table(*columns, title=f"{options.run}, step {step}, {of}", title_justify="left")
    for column in table.columns:
        column.justify = "right"
    console = Console()
    with Live(table, console=console):  # what is measured is seen at once, as far as the screen holds it
        for plan, cells in lines:
            table.add_row(f"{plan} (trained)" if plan == trained else str(plan), *cells)
    if not console.is_terminal:
        console.line()  # the last line is left open otherwise
    return 0


def _on_task(
    config: TrainConfig, model: LoopedTransformer, options: Options, plans: Plans
) -> Iterator[tuple[LoopPlan, list[str]]]:
    tasks = config.task.difficulties if options.by_difficulty else config.task.tests
    for loops, plan in plans.items():
        for name, task in tasks.items():
            score = exact_match(model, task, options.split, options.examples, config.batch_size, loops)
            yield plan, [name, str(score.examples), f"{score.accuracy:.2%}", f"{score.loss:.4f}"]


def _on_text(
    config: TrainConfig, data: TokenData, model: LoopedTransformer, options: Options, plans: Plans
) -> Iterator[tuple[LoopPlan, list[str]]]:
    """The text has no split of its own for tests: what was not trained on is its validation split."""
    length, device = config.model.max_len, model.token_embedding.weight.device
    sequences = min(options.examples, data.sequences("validation", length))
    loss_of = LanguageLoss(model, compiled=False)

    def summed(loops: int | None, tokens: Tensor, weights: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=tokens.is_cuda):
            loss: Tensor = loss_of(tokens, weights, loops)
        return loss

    for loops, plan in plans.items():
        summed_so = partial(summed, loops)
        loss = float(mean_loss(summed_so, data, "validation", length, sequences, min(8, sequences), device))
        yield plan, [f"{sequences * length:,}", f"{perplexity(loss):.3f}", f"{loss:.4f}"]


def _which(checkpoint: str) -> Literal["best", "last"] | int:
    if checkpoint.isdecimal():
        return int(checkpoint)
    match checkpoint:
        case "best" | "last":
            return checkpoint
    raise InputError(f"checkpoint={checkpoint}: allowed is best | last | a step, such as 500")
