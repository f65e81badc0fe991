"""Time, for runs that train in one process at the same time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class SharedClock:
    """Splits wall time among the runs that train in one process."""

    began: float = field(default_factory=time.monotonic)
    """Since when a time limit counts, for all of them: some begin only when others have been built."""

    def __post_init__(self) -> None:
        self._runs, self._seconds_each, self._shared_until = 1, 0.0, self.began

    def out_of_time(self, limit: float | None) -> bool:
        return limit is not None and time.monotonic() - self.began >= limit

    def seconds_each(self, runs: int | None = None) -> float:
        """Returns the seconds charged to a run that was there all along: time is split evenly among those that train,
        from now on among ``runs``."""
        now = time.monotonic()
        self._seconds_each += (now - self._shared_until) / self._runs
        self._shared_until, self._runs = now, runs or self._runs
        return self._seconds_each
