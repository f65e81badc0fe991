"""% Gap: how much of the way from the iso-param to the iso-flop baseline looping covers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch

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


Covariance = Sequence[Sequence[float]]
"""Of the errors of several models' scores; of three these are the looped model's, that of (k⊗1) and that of (kL⊗1)."""


def gap_between(looped: Measured, iso_param: Measured, iso_flop: Measured, together: Covariance | None = None) -> Gap:
    """Returns the % Gap of three scores. With standard errors it has a confidence interval (Fieller's, the baseline
    (k⊗1) being in both differences), and is not defined where the baselines differ by no more than noise. The errors
    are taken to be independent, unless it is known how they go ``together``.

    >>> gap_between(Measured(27.0), Measured(26.8), Measured(26.8)).undefined
    'no gap: both baselines have 26.8'
    >>> gap_between(Measured(27.0, 0.5), Measured(26.8, 0.5), Measured(27.2, 0.5)).undefined
    'within noise: the baselines differ by 0.4 ± 1.39'
    """
    percent = percent_gap(looped.value, iso_param.value, iso_flop.value)
    if math.isnan(percent):
        return Gap(None, None, f"no gap: both baselines have {iso_param.value:.4g}")
    if together is None:
        if looped.error is None or iso_param.error is None or iso_flop.error is None:
            return Gap(percent, None, "")
        errors = torch.tensor([looped.error, iso_param.error, iso_flop.error], dtype=torch.float64)
        together = errors.square().diag().tolist()
    differences = torch.tensor([[1.0, -1.0, 0.0], [0.0, -1.0, 1.0]], dtype=torch.float64)
    noise = (differences @ torch.tensor(together, dtype=torch.float64) @ differences.T).tolist()  # of both differences
    covered, difference = looped.value - iso_param.value, iso_flop.value - iso_param.value
    found = ratio_interval(covered, difference, noise[0][0], noise[1][1], noise[0][1], NORMAL_QUANTILE)
    if found is None:
        reach = NORMAL_QUANTILE * math.sqrt(noise[1][1])
        return Gap(None, None, f"within noise: the baselines differ by {abs(difference):.3g} ± {reach:.3g}")
    return Gap(percent, Interval(100 * found.low, 100 * found.high), "")


def covariance_of_rates(amounts: Sequence[Sequence[float]], sizes: Sequence[float]) -> list[list[float]]:
    """Returns the covariance of the errors of several models' rates, each the sum of its ``amounts`` over that of the
    ``sizes``, such as bits per byte of the same answers. A question that is hard for one model is hard for the others,
    so that their differences are known better than each rate."""
    of_models = torch.tensor(amounts, dtype=torch.float64)  # [models, answers]
    of_answers = torch.tensor(sizes, dtype=torch.float64)
    rates = of_models.sum(1, keepdim=True) / of_answers.sum()
    residuals = (of_models - rates * of_answers) / of_answers.sum()
    count = len(sizes)
    found: list[list[float]] = (residuals @ residuals.T * count / (count - 1)).tolist()
    return found
