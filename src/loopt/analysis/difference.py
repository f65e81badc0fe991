"""How much more one model scores than another, with what is known of its noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from loopt.analysis.gap import NORMAL_QUANTILE, Covariance, Measured
from loopt.analysis.intervals import Interval


@dataclass(frozen=True)
class Difference:
    """A difference of two scores."""

    value: float
    interval: Interval | None
    """None where a standard error is missing."""

    @property
    def beyond_noise(self) -> bool:
        """Returns whether the interval leaves out 0."""
        return self.interval is not None and (self.interval.low > 0 or self.interval.high < 0)


def difference_between(model: Measured, base: Measured, together: Covariance | None = None) -> Difference:
    """Returns by how much a model's score is above that of the base. The errors of the two are taken to be independent,
    unless it is known how they go ``together``.

    >>> difference_between(Measured(3.5, 0.3), Measured(3.0, 0.4)).beyond_noise
    False
    >>> difference_between(Measured(3.5), Measured(3.0), [[0.09, 0.12], [0.12, 0.16]]).beyond_noise
    True
    """
    value = model.value - base.value
    if together is not None:
        variance = together[0][0] + together[1][1] - 2 * together[0][1]
    elif model.error is not None and base.error is not None:
        variance = model.error**2 + base.error**2
    else:
        return Difference(value, None)
    reach = NORMAL_QUANTILE * math.sqrt(max(0.0, variance))
    return Difference(value, Interval(value - reach, value + reach))
