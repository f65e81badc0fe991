"""How the training of a run ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loopt.errors import RunError


@dataclass(frozen=True)
class Outcome:
    """How far a run has come, and why it stopped there."""

    finished: bool
    step: int
    reason: str
    result: dict[str, Any] = field(default_factory=dict)
    """What result.json holds, of a finished run."""
    signal: int | None = None
    """What asked the process to stop, be the run finished or not."""


class DivergedError(RunError):
    """Training met a loss or gradient that is not a number."""
