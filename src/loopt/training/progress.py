"""The lines a person watches while runs train; silent when nobody can see them."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn


class ProgressLines:
    """One line for each run."""

    def __init__(self, shown: bool = True) -> None:
        self.display = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}", markup=False),  # a directory may be called anything
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.completed}/{task.total} steps  {task.fields[figures]}"),
            TimeRemainingColumn(elapsed_when_finished=True, compact=True),
            console=Console(stderr=True),
            disable=not shown or not Console(stderr=True).is_terminal,
        )

    def __enter__(self) -> ProgressLines:
        self.display.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.display.stop()

    def add(self, label: str, total: int, done: int, measured: str | None) -> ProgressLine:
        return ProgressLine(self.display, label, total, done, measured)


class ProgressLine:
    def __init__(self, display: Progress, label: str, total: int, done: int, measured: str | None) -> None:
        self._progress = display
        self._figures: dict[str, str] = {}
        if measured is not None:
            self.measured(measured)
        self._task = display.add_task(label, total=total, completed=done, figures=self._text())

    def step(self, done: int) -> None:
        self._progress.update(self._task, completed=done)

    def speed(self, loss: float, speed: Mapping[str, float]) -> None:
        self._figures["loss"] = f"loss {loss:.3f}"
        for name, what in (("examples_per_second", "examples/s"), ("tokens_per_second", "tokens/s")):
            if name in speed:
                self._figures["speed"] = f"{speed[name]:,.0f} {what}"
        self._progress.update(self._task, figures=self._text())

    def measured(self, shown: str) -> None:
        self._figures["measured"] = shown

    def finished(self, done: int) -> None:
        """A run that stops early because it is solved is as finished as one that ran all its steps."""
        self._progress.update(self._task, total=done, completed=done, figures=self._text())

    def _text(self) -> str:
        return "  ".join(self._figures[name] for name in ("loss", "measured", "speed") if name in self._figures)
