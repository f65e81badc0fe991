"""The progress bar of preparing text, shown only in a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Display

from loopt.text.prepare import Progress


@contextmanager
def progress_bar() -> Iterator[Callable[[Progress], None]]:
    """Shows a progress bar, and yields the function that ``prepare`` reports to."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),  # a file may be called anything
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(compact=True),
    )
    with Display(*columns, console=console, disable=not console.is_terminal) as display:
        task = display.add_task("starting", total=None, figures="")
        first: tuple[float, int] | None = None

        def report(progress: Progress) -> None:
            nonlocal first  # so that speed leaves out starting up and earlier sessions
            now = time.monotonic()
            since, tokens_before = first = first or (now, progress.tokens)
            speed = (progress.tokens - tokens_before) / (now - since) if now > since else 0.0
            figures = f"{progress.documents:,} documents  {progress.tokens:,} tokens  {speed:,.0f} tokens/s"
            description, total, done = progress.source[-40:], progress.bytes_stored, progress.bytes_read
            display.update(task, description=description, total=total, completed=done, figures=figures)

        yield report
