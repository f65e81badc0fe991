"""What is refused because no machine, or not this one, has the memory or the time for it.

An exported model carries this file, so it imports nothing but the standard library.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from loopt.errors import InputError

LARGEST = 10**9
"""The largest size, count or number of examples that a field takes."""
INT64 = range(-(2**63), 2**63)
"""The integers that a tensor holds, and that any file or option may give."""
WORK_PER_SECOND = 10**11
"""Operations of matrix products that a CPU does in a second, roughly: refusals are for what takes far longer."""
WEEK = 7 * 86_400
"""How many seconds anything may take that has no limit of its own."""


def require_affordable(what: str, memory: int = 0, seconds: int = 0, longest: int = WEEK) -> None:
    """Raises an InputError, with what it would take, where something needs more bytes than this machine has, or more
    than the ``longest`` seconds.

    >>> require_affordable("a batch of 4 examples", memory=4096, seconds=1)
    >>> require_affordable("a batch of 4 examples", seconds=10**7)
    Traceback (most recent call last):
    loopt.errors.InputError: a batch of 4 examples would take about 115 days; allowed is what ends within 7 days
    """
    available = machine_memory()
    if available is not None and memory > available:
        needed, there_is = _gigabytes(memory), _gigabytes(available)
        raise InputError(f"{what} would take about {needed} of memory; this machine has {there_is}")
    if seconds > longest:
        takes, allowed = _duration(seconds), _duration(longest)
        raise InputError(f"{what} would take about {takes}; allowed is what ends within {allowed}")


@cache
def machine_memory() -> int | None:
    """Returns the bytes of memory that this machine, or the container around this process, has; None if unknown."""
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
    try:
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no container, or one without a limit, which says max
        return physical


def _duration(seconds: int) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600)):
        if seconds >= 2 * length:
            return f"{seconds // length:,} {unit}"
    return f"{seconds // 60} minutes"


def _gigabytes(memory: int) -> str:
    return f"{memory / 10**9:,.1f} GB"
