"""Ctrl-C and SIGTERM: a run that is asked to stop saves first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def stopped_by(number: int) -> str:
    """Returns the reason to stop that a signal is.

    >>> stopped_by(15)
    'stopped by SIGTERM'
    """
    return f"stopped by {signal.Signals(number).name}"


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Catches Ctrl-C and SIGTERM, and yields the list that they are put in; a second one ends the process as usual."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    previous: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: object) -> None:
        caught.append(number)
        restore()

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    for number in previous:
        signal.signal(number, note)
    try:
        yield caught
    finally:
        restore()
