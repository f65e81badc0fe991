"""What a run trains on: steps to take, and how the model is measured on the way and at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from loopt.training.step import Step


@dataclass(frozen=True)
class Evaluation:
    score: float
    """By which the best checkpoint is chosen: the higher, the better."""
    values: dict[str, float]
    """What metrics.jsonl says about it."""
    shown: str
    """What a person sees."""


class Work(Protocol):
    @property
    def step(self) -> Step:
        """What trains."""

    def validate(self) -> Evaluation:
        """How the model does now on examples it is not trained on."""

    def test(self) -> dict[str, Any]:
        """The final figures, for result.json."""

    def speed(self, steps: int, seconds: float) -> dict[str, float]:
        """Of so many steps that took so long."""
