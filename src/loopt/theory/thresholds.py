"""The smallest value of a constant that is still enough."""

from __future__ import annotations

from collections.abc import Callable


def bisect(holds: Callable[[float], bool], low: float, high: float, steps: int = 16) -> float:
    """Returns a value that holds, at most (high - low) / 2^steps above one that does not; ``low`` where that holds.

    >>> 2 <= bisect(lambda value: value**2 >= 4, low=0, high=8) < 2.001
    True
    """
    if holds(low):
        return low
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
