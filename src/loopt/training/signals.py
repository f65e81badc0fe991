"""Ctrl-C, SIGTERM and SIGHUP: a run that is asked to stop saves first."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
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
    """Catches Ctrl-C, SIGTERM and the SIGHUP of a terminal that is gone, and yields the list that they are put in; a
    second one ends the process as usual."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    previous: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
        previous[signal.SIGHUP] = signal.getsignal(signal.SIGHUP)

    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def note(number: int, frame: object) -> None:
        caught.append(number)
        restore()
        _silence(descriptor for descriptor in terminals if not os.isatty(descriptor))

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    for number in previous:
        signal.signal(number, note)
    try:
        yield caught
    finally:
        restore()


def _silence(descriptors: Iterable[int]) -> None:
    """Has what is written to these go nowhere: on a terminal that is gone, every write is an error."""
    for descriptor in descriptors:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
