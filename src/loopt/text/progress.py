"""The line a person watches while text is prepared; silent when nobody can see it."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Display

from loopt.text.prepare import Progress


class PreparingLine:
    def __init__(self) -> None:
        console = Console(stderr=True)
        self._display = Display(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),  # a file may be called anything
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._display.add_task("starting", total=None, figures="")
        self._first: tuple[float, int] | None = None

    def __enter__(self) -> PreparingLine:
        self._display.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._display.stop()

    def __call__(self, progress: Progress) -> None:
        """Speed is counted from the first report: what an earlier session did, and starting up, is no speed."""
        now = time.monotonic()
        since, tokens_before = self._first = self._first or (now, progress.tokens)
        speed = (progress.tokens - tokens_before) / (now - since) if now > since else 0.0
        self._display.update(
            self._task,
            description=progress.source[-40:],
            total=progress.bytes_stored,
            completed=progress.bytes_read,
            figures=f"{progress.documents:,} documents  {progress.tokens:,} tokens  {speed:,.0f} tokens/s",
        )
