"""How many loops each training step has, where that is not the plan's number: a random one, for models that are to be
run for longer or shorter at inference, or one that grows.

The number depends on the seed and the step alone, so that it is the same on every rank and after a restart.

>>> counts = LoopCounts(low=4, high=8)
>>> [counts.count_at(step, seed=0) for step in range(10)]
[8, 6, 7, 6, 5, 6, 4, 4, 5, 4]
>>> counts = LoopCounts(low=2, high=4, distribution="growing", until=6)
>>> [counts.count_at(step, seed=0) for step in range(10)]
[2, 2, 2, 3, 3, 3, 4, 4, 4, 4]
"""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch

from loopt.errors import require
from loopt.plan import LoopPlan
from loopt.random_bits import Stream

Distribution = Literal["uniform", "lognormal_poisson", "growing"]

LOG_RATE_DEVIATION = 0.5
"""Deviation of the logarithm of the Poisson's rate, as Huginn has it."""


@dataclass(frozen=True)
class LoopCounts:
    """How many loops each step of training has."""

    low: int = 0
    """The fewest loops of a step. 0: the plan's own number always."""
    high: int = 0
    """The most."""
    distribution: Distribution = "uniform"
    """lognormal_poisson is Huginn's (Geiping et al. 2025): mostly below its centre, and now and then far above it.
    growing is not random: low loops at first, then one more at a time, and at last high, which is the plan's number.
    Validation has all of them throughout."""
    center: float | None = None
    """Of lognormal_poisson: 1 + a Poisson number whose rate is log-normal with this mean, given that it is from low to
    high."""
    until: int | None = None
    """Of growing: the step, counted from 0, from which on all have high loops.
    The smaller numbers get equal shares of the steps before it."""
    problems_only: bool = False
    """Let the number choose the problems alone, in tasks whose size goes by the loops; the model runs all of its loops
    in every step."""

    def __post_init__(self) -> None:
        require(self.low >= 0, "loop_counts.low", self.low, "1 or more, or 0 for none")
        require(self.high >= self.low, "loop_counts.high", self.high, f"low={self.low} or more")
        require(self.active or self.high == 0, "loop_counts.low", self.low, f"1 or more, since high={self.high}")
        alone = self.active or not self.problems_only
        require(alone, "loop_counts.problems_only", self.problems_only, "off, since low=0 has no numbers to go by")
        kinds = get_args(Distribution)
        require(self.distribution in kinds, "loop_counts.distribution", self.distribution, " | ".join(kinds))
        if self.distribution == "lognormal_poisson":
            given = self.center is not None and self.low <= self.center <= self.high
            require(given, "loop_counts.center", self.center, f"from low={self.low} to high={self.high}")
        else:
            allowed = f"none with distribution={self.distribution}"
            require(self.center is None, "loop_counts.center", self.center, allowed)
        if self.distribution == "growing":
            require(self.active, "loop_counts.low", self.low, "1 or more with distribution=growing")
            more = self.high - self.low
            require(more > 0, "loop_counts.high", self.high, f"more than low={self.low} with distribution=growing")
            allowed = f"{more} or more, a step for each number of loops before high={self.high}"
            require(self.until is not None and self.until >= more, "loop_counts.until", self.until, allowed)
        else:
            require(self.until is None, "loop_counts.until", self.until, f"none with distribution={self.distribution}")

    def check(self, plan: LoopPlan, steps: int) -> None:
        """Raises an InputError for a plan that does not tell what to loop, and for growth into another model or after
        the end."""
        plan.with_loops(self.high)
        if self.until is not None and plan.loopable is not None:
            loops = plan.blocks[plan.loopable].loops
            allowed = f"{loops} with distribution=growing, as the model's plan {plan} has it"
            require(self.high == loops, "loop_counts.high", self.high, allowed)
            require(self.until < steps, "loop_counts.until", self.until, f"less than steps={steps}")

    @property
    def active(self) -> bool:
        return self.low > 0

    def count_at(self, step: int, seed: int) -> int:
        """Returns the loops of this step."""
        if self.until is not None:
            more = self.high - self.low
            return self.low + min(more, step * more // self.until)
        bits = Stream("loop counts", seed, "train").bits(torch.tensor([step]), 1, "count")
        share = (int(bits) % 2**64) / 2**64
        return self.low + bisect.bisect_right(self._reached, share)

    @cached_property
    def probabilities(self) -> tuple[float, ...]:
        """Returns the probabilities of low, low + 1, … high loops, where they are random."""
        loops = range(self.low, self.high + 1)
        weights = [1.0] * len(loops) if self.center is None else [_lognormal_poisson(n - 1, self.center) for n in loops]
        total = math.fsum(weights)
        return tuple(weight / total for weight in weights)

    @cached_property
    def _reached(self) -> list[float]:
        """Returns the cumulative probabilities, without the last, which is 1."""
        return list(itertools.accumulate(self.probabilities[:-1]))


def _lognormal_poisson(count: int, mean: float) -> float:
    """Returns the probability of a Poisson number whose rate is log-normal: a sum over the rate's logarithm."""
    deviations = [step / 20 for step in range(-120, 121)]
    rates = [mean * math.exp(LOG_RATE_DEVIATION * z - LOG_RATE_DEVIATION**2 / 2) for z in deviations]
    poisson = (math.exp(count * math.log(rate) - rate - math.lgamma(count + 1)) for rate in rates)
    normal = (math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / 20 for z in deviations)
    return math.fsum(p * n for p, n in zip(poisson, normal, strict=True))
