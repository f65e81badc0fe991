"""φ, what a loop is worth: found again from points of a known law, and not claimed where points do not tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_points import PLANS, on_loop_law

from loopt.analysis.loop_exponent import LoopLaw, fit_loop_law
from loopt.analysis.points import Point


def law_of(points: list[Point]) -> LoopLaw:
    law = fit_loop_law(points)
    assert isinstance(law, LoopLaw), law
    return law


@pytest.mark.parametrize("phi", [0.0, 0.46, 1.0])
def test_the_law_without_noise_is_found(phi: float) -> None:
    points = on_loop_law(phi)
    law = law_of(points)
    assert law.phi == pytest.approx(phi, abs=1e-4)
    assert (law.alpha, law.floor, law.factor) == pytest.approx((0.2, 2, 20), rel=1e-2)
    assert law.interval.low <= law.phi <= law.interval.high
    assert law.determined
    for point in points:
        assert point.parameters is not None
        assert law.loss(point.parameters) == pytest.approx(point.metrics["loss"], abs=1e-6)


def test_blocks_that_loop_differently_count_each_by_its_loops() -> None:
    law = law_of(on_loop_law(0.7, plans=[*PLANS, "4x(1,4,1)", "2x3+2x5*"]))
    assert law.phi == pytest.approx(0.7, abs=1e-4)


@pytest.mark.slow
def test_the_interval_covers_phi_in_19_of_20_cases() -> None:
    covered = 0
    for seed in range(40):
        interval = law_of(on_loop_law(0.46, noise=0.003, seed=seed)).interval
        covered += interval.low <= 0.46 <= interval.high
    assert 34 <= covered <= 40, covered  # with probability 0.986 of 40 draws at 0.95


def test_noise_as_large_as_what_loops_do_leaves_phi_open() -> None:
    law = law_of(on_loop_law(0.46, noise=0.2, seed=1))
    assert not law.determined


def test_points_that_cannot_tell_are_named() -> None:
    points = on_loop_law(0.46)
    plain = [point for point in points if point.plan.blocks[0].loops == 1]
    looped = [point for point in points if point.plan.blocks[0].loops > 1]
    for given, told in (
        (plain, "no model loops"),
        ([*looped, *plain[:2]], "2 sizes of models without loops"),
        (points[:4], "4 points for the 4 unknowns"),
        ([replace(points[0], tokens=2 * 10**9), *points[1:]], "trained on 1,000,000,000 to 2,000,000,000 tokens"),
        ([replace(points[0], parameters=None), *points[1:]], "not every file has a config"),
        ([replace(points[0], metrics={"accuracy": 1.0}), *points[1:]], "and a loss or perplexity"),
    ):
        found = fit_loop_law(given)
        assert isinstance(found, str)
        assert told in found
