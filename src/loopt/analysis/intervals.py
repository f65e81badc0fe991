"""Straight lines by least squares, and the confidence intervals of what is estimated: Student's t, and Fieller's for
a ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

CONFIDENCE = 0.95


class Interval(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """The line y = slope·x + intercept that fits some points best."""

    slope: float
    intercept: float
    squares: float
    """Sum of the squared residuals."""
    freedom: int
    """Degrees of freedom of the residuals: points, less two."""
    slope_interval: Interval | None
    """None where two points leave nothing to tell the noise by; so below."""
    intercept_interval: Interval | None

    def at(self, x: float) -> float:
        return self.slope * x + self.intercept


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line | None:
    """Returns the line of least squares, or None where there are no two different x.

    >>> line = fit_line([0, 1, 2], [1.0, 3.0, 5.0])
    >>> line.slope, line.intercept, line.freedom
    (2.0, 1.0, 1)
    """
    weights = slope_weights(x)
    if weights is None:
        return None
    count, mean_x, mean_y = len(x), math.fsum(x) / len(x), math.fsum(y) / len(y)
    slope = math.fsum(weight * (value - mean_y) for weight, value in zip(weights, y, strict=True))
    intercept = mean_y - slope * mean_x
    squares = math.fsum((value - slope * at - intercept) ** 2 for at, value in zip(x, y, strict=True))
    if count == 2:
        return Line(slope, intercept, squares, 0, None, None)
    of_slope = math.fsum(weight**2 for weight in weights)  # the slope's variance, over that of the noise
    noise = squares / (count - 2)
    reach = t_quantile(count - 2)
    slope_reach = reach * math.sqrt(noise * of_slope)
    intercept_reach = reach * math.sqrt(noise * (1 / count + mean_x**2 * of_slope))
    return Line(
        slope,
        intercept,
        squares,
        count - 2,
        Interval(slope - slope_reach, slope + slope_reach),
        Interval(intercept - intercept_reach, intercept + intercept_reach),
    )


def slope_weights(x: Sequence[float]) -> list[float] | None:
    """Returns what each y counts in the slope of least squares, which is their weighted sum; None where all x are one.

    >>> slope_weights([0.0, 1.0, 2.0]), slope_weights([3.0, 3.0])
    ([-0.5, 0.0, 0.5], None)
    """
    if len(set(x)) < 2:
        return None
    mean = math.fsum(x) / len(x)
    spread = math.fsum((at - mean) ** 2 for at in x)
    return [(at - mean) / spread for at in x]


def ratio_interval(
    above: float, below: float, above_variance: float, below_variance: float, covariance: float, quantile: float
) -> Interval | None:
    """Returns Fieller's interval for the ratio of two means, above over below; None where ``below`` is within noise of
    zero, so that no bounded interval has the confidence. Every ratio r in it has above - r·below within noise of zero.

    >>> ratio_interval(2.0, 1.0, 0.0, 0.0, 0.0, 1.96)
    Interval(low=2.0, high=2.0)
    >>> ratio_interval(2.0, 1.0, 0.0, 0.3, 0.0, 1.96) is None
    True
    """
    squared = quantile**2
    a = below**2 - squared * below_variance
    b = above * below - squared * covariance
    c = above**2 - squared * above_variance
    if a <= 0:
        return None
    root = math.sqrt(max(0.0, b**2 - a * c))  # rounding alone makes it negative: the ratio itself solves the inequality
    return Interval((b - root) / a, (b + root) / a)


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Returns t such that a variable of Student's t distribution is within ±t with this probability.

    >>> round(t_quantile(1), 3), round(t_quantile(4), 3), round(t_quantile(10, 0.99), 3)
    (12.706, 2.776, 3.169)
    """
    low, high = 0.0, math.pi / 2  # of atan(t / √freedom), which is bounded
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, freedom) < confidence else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _t_within(angle: float, freedom: int) -> float:
    """Returns the probability that |t| < tan(angle)·√freedom, by the finite series for whole degrees of freedom
    (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
