"""What a person watches while runs train: bars in a terminal, and elsewhere, as in a log file, plain lines."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
)
from rich.text import Text

from loopt.training.callbacks import Callback

if TYPE_CHECKING:
    from loopt.training.learner import Evaluation
    from loopt.training.trainer import Trainer


class Display:
    """Shows how far runs are, and where there are several, how far all of them: ``steps`` has the steps of each."""

    def __init__(self, shown: bool = True, steps: Sequence[int] = ()) -> None:
        console = Console(stderr=True)
        self.plain = shown and not console.is_terminal
        self.bars = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}", markup=False),  # a directory may be called anything
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.completed}/{task.total} steps  {task.fields[figures]}"),
            _TimeColumn(),
            console=console,
            disable=not shown or self.plain,
        )
        self._shown, self._said = shown, set[str]()
        self._runs, self._total = len(steps), sum(steps)
        self._done = self._skipped = 0
        self._counting = threading.Lock()  # runs may train in threads of their own
        self._began = time.monotonic()
        several = self._runs > 1
        self._all = self.bars.add_task(f"all {self._runs} runs", total=self._total, figures="") if several else None

    def __enter__(self) -> Display:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def say_once(self, text: str) -> None:
        """Prints a line that is not about one run, unless it has been printed before."""
        if text and self._shown and text not in self._said:
            self._said.add(text)
            self._print(text)

    def say(self, text: str) -> None:
        """Prints a line where there are no bars."""
        if self.plain:
            self._print(text)

    def _print(self, text: str) -> None:
        self.bars.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def advance(self, steps: int, trained: bool = True) -> None:
        """Counts steps for all runs; those that were not ``trained`` now tell nothing about the time left."""
        with self._counting:
            self._done += steps
            self._skipped += 0 if trained else steps
        if self._all is not None:
            self.bars.update(self._all, completed=self._done)

    def time_left(self) -> str:
        """Returns the time that is left for all runs, where they are several."""
        left = _left(self._total - self._done, self._done - self._skipped, time.monotonic() - self._began)
        return f"; all {self._runs} runs: {left}" if self._runs > 1 else ""


class _TimeColumn(ProgressColumn):
    """Tells the time that is left, or that a run took."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        if task.finished:
            return Text(f"took {duration(task.finished_time or 0.0)}", style="progress.elapsed")
        return Text(f"{duration(task.time_remaining)} left" if task.time_remaining is not None else "")


SECONDS_BETWEEN = 10
"""At least, from one line about measuring to the next."""


class ProgressLine(Callback):
    """Shows how far one run is, with its loss, what validation found last, and its speed."""

    def __init__(self, display: Display, label: str) -> None:
        self._display, self._label = display, label
        self._figures: dict[str, str] = {}
        self._task = TaskID(-1)
        self._first_step, self._began = 0, time.monotonic()
        self._told_measured = -math.inf

    def begun(self, trainer: Trainer) -> None:
        if trainer.best:
            self._figures["measured"] = trainer.best.shown
        total, done = trainer.config.steps, trainer.step
        self._first_step, self._began = done, time.monotonic()
        self._display.advance(done, trained=False)
        self._task = self._display.bars.add_task(self._label, total=total, completed=done, figures=self._text())

    def stepped(self, trainer: Trainer) -> None:
        self._display.advance(1)
        self._display.bars.update(self._task, completed=trainer.step)

    def logged(self, trainer: Trainer, values: Mapping[str, float]) -> None:
        self._figures["loss"] = f"loss {values['loss']:.3f}"
        for name, unit in (("examples_per_second", "examples/s"), ("tokens_per_second", "tokens/s")):
            if name in values:
                self._figures["speed"] = f"{values[name]:,.0f} {unit}"
        self._display.bars.update(self._task, figures=self._text())
        self._say(trainer, "loss", "speed")

    def evaluated(self, trainer: Trainer, evaluation: Evaluation) -> None:
        self._figures["measured"] = evaluation.shown
        self._display.bars.update(self._task, figures=self._text())
        self._say(trainer, "measured")

    def finished(self, trainer: Trainer) -> None:
        """Fills the bar: a run that stops early because it is solved is as finished as one that ran all its steps."""
        self._display.advance(trainer.config.steps - trainer.step, trained=False)
        self._display.bars.update(self._task, total=trainer.step, completed=trainer.step, figures=self._text())

    def measured(self, what: str, steps: int) -> None:
        """Shows what was measured last of the run, which has taken all its steps, maybe in an earlier session."""
        self._figures["speed"] = f"measured {what}"
        if self._task == TaskID(-1):
            self._display.advance(steps, trained=False)
            self._task = self._display.bars.add_task(self._label, total=steps, completed=steps, figures="")
        self._display.bars.update(self._task, figures=self._text())
        if (now := time.monotonic()) - self._told_measured >= SECONDS_BETWEEN:
            self._told_measured = now
            self._display.say(f"{self._label}: measured {what}")

    def _say(self, trainer: Trainer, *figures: str) -> None:
        """Prints a line for those who read a log: the step, figures, and the time that is left."""
        step, steps = trainer.step, trainer.config.steps
        left = _left(steps - step, step - self._first_step, time.monotonic() - self._began)
        told = ", ".join(self._figures[name] for name in figures if name in self._figures)
        kind = "validation " if "measured" in figures else ""
        self._display.say(f"{self._label}: step {step} of {steps}, {kind}{told}, {left}{self._display.time_left()}")

    def _text(self) -> str:
        return "  ".join(self._figures[name] for name in ("loss", "measured", "speed") if name in self._figures)


def _left(steps: int, done: int, seconds: float) -> str:
    """Returns the time that so many steps will take, when others took so many seconds."""
    return f"{duration(steps * seconds / done)} left" if done else "time left unknown"


def duration(seconds: float) -> str:
    """Returns a time as a person would say it.

    >>> duration(7.4), duration(99), duration(4000), duration(200_000)
    ('7 s', '1 min 39 s', '1 h 6 min', '2 d 7 h')
    """
    whole = round(seconds)
    for large, length, small, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length} {large} {whole % length // part} {small}"
    return f"{whole} s"
