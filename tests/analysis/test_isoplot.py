"""Isoplots: a line for each model and group, compared at the same log-perplexity."""

from __future__ import annotations

import pytest

from loopt.analysis.isoplot import IsoPoint, common_log_perplexity, fit_isoplot, wanted_steps


def training(model: str, first: float, last: float, slope: float, intercept: float) -> list[IsoPoint]:
    """Five checkpoints whose log-perplexity goes from ``first`` to ``last``, with scores on one line."""
    found = []
    for i in range(5):
        x = first + (last - first) * i / 4
        scores = {"closed_book": -5 * x + 30, "primitives": slope * x + intercept}
        found.append(IsoPoint(model, (i + 1) / 5, x, scores))
    return found


def test_lines_that_were_drawn_are_found() -> None:
    points = training("looped", 3.0, 2.4, -20.0, 90.0) + training("base", 3.2, 2.6, -10.0, 50.0)
    lines = {(line.model, line.group): line for line in fit_isoplot(points)}
    assert list(lines) == [(m, g) for g in ("closed_book", "primitives") for m in ("looped", "base")]
    for key, slope, intercept in ((("looped", "primitives"), -20, 90), (("base", "primitives"), -10, 50)):
        fit = lines[key].fit
        assert fit is not None
        assert (fit.slope, fit.intercept) == pytest.approx((slope, intercept))
    assert lines["looped", "primitives"].compared_at == pytest.approx(2.8)
    assert lines["looped", "primitives"].score_there == pytest.approx(34)
    assert lines["base", "primitives"].score_there == pytest.approx(22)
    assert lines["looped", "closed_book"].score_there == pytest.approx(lines["base", "closed_book"].score_there)
    assert not any(line.extrapolated for line in lines.values())


def test_models_that_never_meet_are_compared_between_them_and_that_is_said() -> None:
    points = training("looped", 3.0, 2.8, -20.0, 90.0) + training("base", 2.6, 2.4, -10.0, 50.0)
    assert common_log_perplexity(points) == pytest.approx(2.7)
    assert all(line.extrapolated for line in fit_isoplot(points))


def test_one_checkpoint_makes_no_line() -> None:
    (line, *_) = fit_isoplot(training("looped", 3.0, 2.8, -20.0, 90.0)[:1])
    assert (line.fit, line.score_there) == (None, None)


def test_a_group_that_one_point_lacks_is_left_out() -> None:
    first, *others = training("looped", 3.0, 2.8, -20.0, 90.0)
    points = [IsoPoint("looped", 0.1, 3.1, {"primitives": 28.0}), first, *others]
    assert {line.group for line in fit_isoplot(points)} == {"primitives"}


def test_steps_are_the_papers_fractions_of_any_training() -> None:
    assert wanted_steps(400_000) == list(range(120_000, 400_001, 20_000))
    assert wanted_steps(1000)[0] == 300
    assert wanted_steps(1) == [1]
