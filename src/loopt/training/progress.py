"""The lines a person watches while runs train; silent when nobody can see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from loopt.training.callbacks import Callback

if TYPE_CHECKING:
    from loopt.training.learner import Evaluation
    from loopt.training.trainer import Trainer


def progress_display(shown: bool = True) -> Progress:
    """Returns a display with room for a line for each run."""
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}", markup=False),  # a directory may be called anything
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.completed}/{task.total} steps  {task.fields[figures]}"),
        TimeRemainingColumn(elapsed_when_finished=True, compact=True),
        console=console,
        disable=not shown or not console.is_terminal,
    )


class ProgressLine(Callback):
    """Shows how far one run is, with its loss, what validation found last, and its speed."""

    def __init__(self, display: Progress, label: str) -> None:
        self._display, self._label = display, label
        self._figures: dict[str, str] = {}
        self._task = TaskID(-1)

    def begun(self, trainer: Trainer) -> None:
        if trainer.best:
            self._figures["measured"] = trainer.best.shown
        total, done = trainer.config.steps, trainer.step
        self._task = self._display.add_task(self._label, total=total, completed=done, figures=self._text())

    def stepped(self, trainer: Trainer) -> None:
        self._display.update(self._task, completed=trainer.step)

    def logged(self, trainer: Trainer, values: Mapping[str, float]) -> None:
        self._figures["loss"] = f"loss {values['loss']:.3f}"
        for name, unit in (("examples_per_second", "examples/s"), ("tokens_per_second", "tokens/s")):
            if name in values:
                self._figures["speed"] = f"{values[name]:,.0f} {unit}"
        self._display.update(self._task, figures=self._text())

    def evaluated(self, trainer: Trainer, evaluation: Evaluation) -> None:
        self._figures["measured"] = evaluation.shown
        self._display.update(self._task, figures=self._text())

    def finished(self, trainer: Trainer) -> None:
        """Fills the bar: a run that stops early because it is solved is as finished as one that ran all its steps."""
        self._display.update(self._task, total=trainer.step, completed=trainer.step, figures=self._text())

    def measured(self, what: str, steps: int) -> None:
        """Shows what was measured last of the run, which has taken all its steps, maybe in an earlier session."""
        self._figures["speed"] = f"measured {what}"
        if self._task == TaskID(-1):
            self._task = self._display.add_task(self._label, total=steps, completed=steps, figures="")
        self._display.update(self._task, figures=self._text())

    def _text(self) -> str:
        return "  ".join(self._figures[name] for name in ("loss", "measured", "speed") if name in self._figures)
