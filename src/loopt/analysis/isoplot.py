"""Isoplots: scores against log-perplexity as training proceeds, with a line for each model.

They compare models at the same log-perplexity, which need not be reached at the same step: where the line of one model
lies higher, it has more of that score than its perplexity explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopt.analysis.intervals import Line, fit_line
from loopt.errors import InputError
from loopt.files import read_json

FIRST_FRACTION = 0.3
"""The paper evaluates from step 120,000 of 400,000 on, every 20,000 steps."""
FRACTION_STEP = 0.05


@dataclass(frozen=True)
class IsoPoint:
    """One checkpoint of a model."""

    model: str
    fraction: float
    """Of the training steps."""
    log_perplexity: float
    """Mean loss per token on held-out text, in nats."""
    scores: Mapping[str, float]
    """By task group."""


@dataclass(frozen=True)
class IsoLine:
    """The line of one model and one task group."""

    model: str
    group: str
    fit: Line | None
    """None where the log-perplexities are all one."""
    compared_at: float
    """The log-perplexity at which models are compared, the same for all."""
    score_there: float | None
    """What the line has there."""
    extrapolated: bool
    """Whether that is outside the log-perplexities this model has been measured at."""


def wanted_steps(steps: int) -> list[int]:
    """Returns the steps to evaluate of a training of so many: the paper's fractions of it.

    >>> wanted_steps(400_000)[:3], wanted_steps(400_000)[-1], wanted_steps(10)
    ([120000, 140000, 160000], 400000, [3, 4, 5, 6, 7, 8, 9, 10])
    """
    count = round((1 - FIRST_FRACTION) / FRACTION_STEP)
    percents = [round(100 * (FIRST_FRACTION + FRACTION_STEP * i)) for i in range(count + 1)]
    return sorted({-(-steps * percent // 100) for percent in percents})


def read_iso_points(path: Path, groups: Sequence[str], suffix: str) -> list[IsoPoint]:
    """Returns the points of a result file that has metrics ``by_checkpoint``, from fractions of training to numbers by
    name. The score of a group is under its name and ``suffix``."""
    data = read_json(path, InputError)
    found = data.get("by_checkpoint") if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise InputError(f"{path}: no by_checkpoint; allowed is a run, or a result file of one measured along training")
    points = []
    for fraction, metrics in found.items():
        try:
            scores = {group: float(metrics[group + suffix]) for group in groups if group + suffix in metrics}
            points.append(IsoPoint(path.stem, float(fraction), float(metrics["log_perplexity"]), scores))
        except (KeyError, TypeError, ValueError):
            told = "allowed are numbers by name, log_perplexity among them"
            raise InputError(f"{path}: by_checkpoint.{fraction[:20]}: {told}") from None
    return points


def fit_isoplot(points: Sequence[IsoPoint]) -> list[IsoLine]:
    """Returns the lines of least squares, group by group and model by model, over every group that all points have."""
    models = list(dict.fromkeys(point.model for point in points))
    groups = [group for group in points[0].scores if all(group in point.scores for point in points)]
    at = common_log_perplexity(points)
    lines = []
    for group in groups:
        for model in models:
            mine = [point for point in points if point.model == model]
            x = [point.log_perplexity for point in mine]
            fit = fit_line(x, [point.scores[group] for point in mine])
            lines.append(IsoLine(model, group, fit, at, fit.at(at) if fit else None, not min(x) <= at <= max(x)))
    return lines


def common_log_perplexity(points: Sequence[IsoPoint]) -> float:
    """Returns where models are compared: the middle of the range that all have been through, or, where there is none,
    the middle between those that are furthest apart."""
    reached: dict[str, list[float]] = {}
    for point in points:
        reached.setdefault(point.model, []).append(point.log_perplexity)
    return (max(map(min, reached.values())) + min(map(max, reached.values()))) / 2
