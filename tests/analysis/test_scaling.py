"""The law of depth: α, β and the ratio of two α are found again, with intervals that cover them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from synthetic_points import LOOPS, on_depth_laws, points_of

from loopt.analysis.scaling import fit_depth_law, series_of
from loopt.errors import InputError


def test_series_are_told_by_their_plans() -> None:
    series = series_of(points_of("accuracy", lambda plan: 1.0, ["8x1", "4x2", "4x(1,4,1)", "4x1", "12x1", "4x3"]))
    assert series.block == 4
    assert [str(point.plan) for point in series.looped] == ["4x1", "4x2", "4x3"]
    assert [str(point.plan) for point in series.deep] == ["4x1", "8x1", "12x1"]
    assert [str(point.plan) for point in series.others] == ["4x(1,4,1)"]


@pytest.mark.parametrize(
    ("plans", "told"),
    [
        (["4x1", "8x1"], "found k = no looped plan"),
        (["4x2", "6x2", "24x1"], "found k = 4, 6"),
        (["4x1", "4x2"], "series (D⊗1): found 1 depths"),
        (["4x2", "24x1", "8x1"], "series (4⊗L): found 1 depths"),
    ],
)
def test_what_is_not_two_series_is_refused(plans: list[str], told: str) -> None:
    with pytest.raises(InputError) as refused:
        series_of(points_of("accuracy", lambda plan: 1.0, plans))
    assert told in str(refused.value)


def test_laws_without_noise_are_found() -> None:
    law = fit_depth_law(series_of(on_depth_laws(3.6, 3.0, 20.0, noise=0, seed=0)), "accuracy")
    assert (law.looped.slope, law.deep.slope) == pytest.approx((3.6, 3.0))
    assert law.looped.intercept == pytest.approx(20 - 3.6 * math.log(4))
    assert law.ratio == pytest.approx(1.2)
    assert law.ratio_interval == pytest.approx((1.2, 1.2))


def test_the_interval_of_the_ratio_covers_it_in_19_of_20_cases() -> None:
    covered = 0
    for seed in range(600):
        law = fit_depth_law(series_of(on_depth_laws(2.0, 4.0, 20.0, noise=0.5, seed=seed)), "accuracy")
        assert law.ratio_interval is not None
        covered += law.ratio_interval.low <= 0.5 <= law.ratio_interval.high
    assert 550 <= covered <= 590, covered


def test_at_the_ends_of_the_interval_the_slopes_differ_by_as_much_as_noise_goes() -> None:
    """Slopes and noise computed by NumPy's least squares, over every model once."""
    points = on_depth_laws(2.0, 4.0, 20.0, noise=0.5, seed=0)
    scores = np.array([point.metrics["accuracy"] for point in points])
    weights, squares = [], 0.0
    for series in (list(range(len(LOOPS))), [0, *range(len(LOOPS), len(points))]):
        design = np.array([[math.log(points[i].plan.depth), 1.0] for i in series])
        row = np.zeros(len(points))
        row[series] = np.linalg.pinv(design)[0]
        weights.append(row)
        squares += float(np.linalg.lstsq(design, scores[series])[1][0])
    noise = math.sqrt(squares / (2 * len(LOOPS) - 4))
    interval = fit_depth_law(series_of(points), "accuracy").ratio_interval
    assert interval is not None
    for ratio in interval:
        combined = weights[0] - ratio * weights[1]
        assert abs(combined @ scores) == pytest.approx(2.306004 * noise * np.linalg.norm(combined), rel=1e-5)


def test_several_seeds_are_several_points() -> None:
    points = on_depth_laws(2.0, 4.0, 20.0, noise=0.5, seed=0) + [
        replace(point, seed=1) for point in on_depth_laws(2.0, 4.0, 20.0, noise=0.5, seed=1)
    ]
    law = fit_depth_law(series_of(points), "accuracy")
    assert law.looped.freedom == 2 * len(LOOPS) - 2


def test_a_ratio_to_nothing_but_noise_is_refused_in_19_of_20_cases() -> None:
    laws = [
        fit_depth_law(series_of(on_depth_laws(2.0, 0.0, 20.0, noise=0.5, seed=seed)), "accuracy") for seed in range(400)
    ]
    refused = [law for law in laws if law.ratio is None]
    assert 367 <= len(refused) <= 393, len(refused)
    assert {law.undefined for law in refused} == {"α of (D⊗1) is within noise of 0"}
    assert {law.ratio_interval for law in refused} == {None}


def test_a_ratio_that_is_not_defined_is_told_in_words() -> None:
    flat = points_of("accuracy", lambda plan: plan.depth / plan.distinct_layers)
    assert "does not change" in fit_depth_law(series_of(flat), "accuracy").undefined
    two = fit_depth_law(series_of(points_of("accuracy", lambda plan: plan.depth, ["4x1", "4x2", "8x1"])), "accuracy")
    assert two.ratio == pytest.approx(1)
    assert "no residual" in two.undefined
