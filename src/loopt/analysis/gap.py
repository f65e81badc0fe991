"""% Gap: how much of the way from the iso-param to the iso-flop baseline looping covers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from loopt.analysis.intervals import CONFIDENCE, Interval, ratio_interval

NORMAL_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def percent_gap(looped: float, iso_param: float, iso_flop: float) -> float:
    """Returns 0 where looping adds nothing to the (k⊗1) baseline and 100 where it matches the (kL⊗1) one; it may lie
    outside. NaN where the baselines are equal: there is no gap to cover.

    >>> round(percent_gap(looped=34.3, iso_param=26.8, iso_flop=29.3))
    300
    """
    if iso_flop == iso_param:
        return math.nan
    return (looped - iso_param) / (iso_flop - iso_param) * 100


@dataclass(frozen=True)
class Measured:
    """A score with its standard error, None where that is not known."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class Gap:
    """A % Gap with what is known of its noise."""

    percent: float | None
    """None where it is not defined."""
    interval: Interval | None
    """None where it is not defined, or a standard error is missing."""
    undefined: str
    """Why it is not defined, in words; empty where it is."""


def gap_between(looped: Measured, iso_param: Measured, iso_flop: Measured) -> Gap:
    """Returns the % Gap of three scores. With standard errors it has a confidence interval (Fieller's, the baseline
    (k⊗1) being in both differences), and is not defined where the baselines differ by no more than noise.

    >>> gap_between(Measured(27.0), Measured(26.8), Measured(26.8)).undefined
    'no gap: both baselines have 26.8'
    >>> gap_between(Measured(27.0, 0.5), Measured(26.8, 0.5), Measured(27.2, 0.5)).undefined
    'within noise: the baselines differ by 0.4 ± 1.39'
    """
    percent = percent_gap(looped.value, iso_param.value, iso_flop.value)
    if math.isnan(percent):
        return Gap(None, None, f"no gap: both baselines have {iso_param.value:.4g}")
    if looped.error is None or iso_param.error is None or iso_flop.error is None:
        return Gap(percent, None, "")
    shared = iso_param.error**2
    difference, variance = iso_flop.value - iso_param.value, iso_flop.error**2 + shared
    covered = looped.value - iso_param.value
    found = ratio_interval(covered, difference, looped.error**2 + shared, variance, shared, NORMAL_QUANTILE)
    if found is None:
        noise = NORMAL_QUANTILE * math.sqrt(variance)
        return Gap(None, None, f"within noise: the baselines differ by {abs(difference):.3g} ± {noise:.3g}")
    return Gap(percent, Interval(100 * found.low, 100 * found.high), "")
