"""The lines a person watches while runs train; silent when nobody can see them."""

from __future__ import annotations

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

    def add(self, label: str, total: int, done: int, accuracy: float | None) -> ProgressLine:
        return ProgressLine(self.display, label, total, done, accuracy)


class ProgressLine:
    def __init__(self, display: Progress, label: str, total: int, done: int, accuracy: float | None) -> None:
        self._progress = display
        self._figures: dict[str, str] = {}
        if accuracy is not None:
            self.accuracy(accuracy)
        self._task = display.add_task(label, total=total, completed=done, figures=self._text())

    def step(self, done: int) -> None:
        self._progress.update(self._task, completed=done)

    def speed(self, loss: float, examples_per_second: float) -> None:
        self._figures |= {"loss": f"loss {loss:.3f}", "speed": f"{examples_per_second:,.0f} examples/s"}
        self._progress.update(self._task, figures=self._text())

    def accuracy(self, accuracy: float) -> None:
        self._figures["accuracy"] = f"accuracy {accuracy:.1%}"

    def finished(self, done: int) -> None:
        """A run that stops early because it is solved is as finished as one that ran all its steps."""
        self._progress.update(self._task, total=done, completed=done, figures=self._text())

    def _text(self) -> str:
        return "  ".join(self._figures[name] for name in ("loss", "accuracy", "speed") if name in self._figures)
