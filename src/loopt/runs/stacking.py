"""When a model grows, with gradual stacking (``loopt.training.stacking`` says how)."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass

from loopt.errors import require
from loopt.plan import Block, LoopPlan


@dataclass(frozen=True)
class StackingConfig:
    """When the model gains layers."""

    block: int = 0
    """k: layers that the model starts with, and that it gains each time it grows. 0: no stacking."""
    grow_at: tuple[int, ...] = ()
    """Steps, counted from 0, that are the first with another block."""

    def __post_init__(self) -> None:
        require(self.block >= 0, "stacking.block", self.block, "1 or more, or 0 for none")
        if not self.active:
            require(not self.grow_at, "stacking.grow_at", self.grow_at, "nothing, since block=0")
            return
        ascending = all(a < b for a, b in itertools.pairwise((0, *self.grow_at)))
        allowed = "one step or more, each later than the last"
        require(bool(self.grow_at) and ascending, "stacking.grow_at", self.grow_at, allowed)

    @property
    def active(self) -> bool:
        return self.block > 0

    def check(self, plan: LoopPlan, steps: int) -> None:
        """Raises a ConfigError for a model that does not come out of this growth, and for growth after the end."""
        final = self.plan_at(self.grow_at[-1])
        allowed = f"what grows into the model's plan {plan}, not into {final}"
        require(plan == final, "stacking.grow_at", self.grow_at, allowed)
        require(self.grow_at[-1] < steps, "stacking.grow_at", self.grow_at, f"steps before the last, steps={steps}")

    def layers_at(self, step: int) -> int:
        """Returns how many layers the model has that takes this step."""
        return self.block * (1 + bisect.bisect_right(self.grow_at, step))

    def plan_at(self, step: int) -> LoopPlan:
        """Returns the plan of the model that takes this step.

        >>> [str(StackingConfig(block=6, grow_at=(100, 300)).plan_at(step)) for step in (0, 99, 100, 300, 10**6)]
        ['6x1', '6x1', '12x1', '18x1', '18x1']
        """
        return LoopPlan((Block(self.layers_at(step), 1),))
