"""How a score grows with depth: score = α·log(depth) + β, for depth by looping and for depth by more layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loopt.analysis.intervals import Interval, Line, fit_line, ratio_interval, slope_weights, t_quantile
from loopt.analysis.points import Point
from loopt.errors import InputError


@dataclass(frozen=True)
class Series:
    """The models of Figure 3: (k⊗L) and (kL⊗1), for several L. (k⊗1) is in both."""

    block: int
    """k"""
    looped: tuple[Point, ...]
    deep: tuple[Point, ...]
    others: tuple[Point, ...]
    """Points of other plans, which are in neither."""


@dataclass(frozen=True)
class DepthLaw:
    """The law of one metric in both series."""

    metric: str
    looped: Line
    deep: Line
    ratio: float | None
    """α of the looped series over that of the deep one; None where it is not defined."""
    ratio_interval: Interval | None
    undefined: str
    """Why the ratio or its interval is not defined, in words; empty where they are."""


def series_of(points: Sequence[Point]) -> Series:
    """Sorts points into the two series, by depth; raises an InputError where they are not two series."""
    one_block = [point for point in points if len(point.plan.blocks) == 1]
    blocks = sorted({point.plan.distinct_layers for point in one_block if point.plan.blocks[0].loops > 1})
    if len(blocks) != 1:
        found = ", ".join(map(str, blocks)) or "no looped plan"
        raise InputError(f"plans: found k = {found}; allowed are plans (k⊗L) of one k, with some L > 1, and (kL⊗1)")
    (k,) = blocks
    looped = [point for point in one_block if point.plan.distinct_layers == k]
    deep = [point for point in one_block if point.plan.blocks[0].loops == 1]
    for name, series in ((f"({k}⊗L)", looped), ("(D⊗1)", deep)):
        depths = {point.plan.depth for point in series}
        if len(depths) < 2:
            raise InputError(f"series {name}: found {len(depths)} depths; allowed are 2 or more, for a line")
    inside = {id(point) for point in (*looped, *deep)}
    others = tuple(point for point in points if id(point) not in inside)
    return Series(k, _by_depth(looped), _by_depth(deep), others)


def _by_depth(points: Sequence[Point]) -> tuple[Point, ...]:
    return tuple(sorted(points, key=lambda point: (point.plan.depth, point.seed)))


def fit_depth_law(series: Series, metric: str) -> DepthLaw:
    """Returns the law of one metric, by least squares over every point, each seed being one.

    The interval of the ratio of α is Fieller's. Noise is taken to be the same in both series and estimated from the
    residuals of both; a point in both, (k⊗1), makes the two α vary together, which is counted."""
    looped, deep = _fit(series.looped, metric), _fit(series.deep, metric)
    if deep.slope == 0:
        return DepthLaw(metric, looped, deep, None, None, f"α of (D⊗1) is 0: {metric} does not change with its depth")
    ratio = looped.slope / deep.slope
    freedom = looped.freedom + deep.freedom
    if freedom == 0:
        return DepthLaw(metric, looped, deep, ratio, None, "no interval: with two depths each there is no residual")
    weights = {"looped": _weights(series.looped), "deep": _weights(series.deep)}
    of_deep = weights["deep"]
    noise = (looped.squares + deep.squares) / freedom
    variances = {name: noise * math.fsum(w**2 for w in one.values()) for name, one in weights.items()}
    covariance = noise * math.fsum(w * of_deep.get(key, 0.0) for key, w in weights["looped"].items())
    interval = ratio_interval(
        looped.slope, deep.slope, variances["looped"], variances["deep"], covariance, t_quantile(freedom)
    )
    if interval is None:
        return DepthLaw(metric, looped, deep, None, None, "α of (D⊗1) is within noise of 0")
    return DepthLaw(metric, looped, deep, ratio, interval, "")


def _fit(points: Sequence[Point], metric: str) -> Line:
    line = fit_line([math.log(point.plan.depth) for point in points], [point.metrics[metric] for point in points])
    assert line is not None  # series_of has seen to two depths
    return line


def _weights(points: Sequence[Point]) -> dict[int, float]:
    """Returns what each point counts in the slope."""
    weights = slope_weights([math.log(point.plan.depth) for point in points])
    assert weights is not None
    return {id(point): weight for point, weight in zip(points, weights, strict=True)}
