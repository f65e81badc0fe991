"""Lines and intervals: the quantiles of the tables, the line that was drawn, and intervals that cover as often as they
say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopt.analysis.intervals import fit_line, ratio_interval, t_quantile

numbers = st.floats(-50, 50)


@pytest.mark.parametrize(
    ("freedom", "confidence", "printed"),
    [(1, 0.95, 12.706), (2, 0.95, 4.303), (3, 0.9, 2.353), (7, 0.99, 3.499), (30, 0.95, 2.042), (120, 0.95, 1.980)],
)
def test_quantiles_are_those_of_printed_tables(freedom: int, confidence: float, printed: float) -> None:
    assert t_quantile(freedom, confidence) == pytest.approx(printed, abs=5e-4)


@given(slope=numbers, intercept=numbers, x=st.lists(st.integers(-20, 20), min_size=3, max_size=9, unique=True))
def test_a_line_without_noise_is_found(slope: float, intercept: float, x: list[int]) -> None:
    line = fit_line([float(at) for at in x], [slope * at + intercept for at in x])
    assert line is not None
    assert line.slope_interval is not None
    assert line.slope == pytest.approx(slope, abs=1e-9)
    assert line.intercept == pytest.approx(intercept, abs=1e-8)
    assert line.slope_interval.high - line.slope_interval.low < 1e-6
    assert line.at(3.0) == pytest.approx(3 * slope + intercept, abs=1e-7)


def test_where_there_is_no_line_or_no_noise_to_tell_none_is_given() -> None:
    assert fit_line([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]) is None
    two = fit_line([1.0, 2.0], [3.0, 5.0])
    assert two is not None
    assert (two.slope, two.slope_interval, two.intercept_interval) == (2.0, None, None)


def test_intervals_cover_the_truth_in_19_of_20_cases() -> None:
    draw = np.random.default_rng(0)
    x = np.log([4, 8, 12, 24, 36, 48]).tolist()
    covered = np.zeros(2)
    for _ in range(1000):
        line = fit_line(x, (3.0 * np.array(x) - 1.0 + draw.normal(0, 0.5, 6)).tolist())
        assert line is not None
        for i, (interval, truth) in enumerate(((line.slope_interval, 3.0), (line.intercept_interval, -1.0))):
            assert interval is not None
            covered[i] += interval.low <= truth <= interval.high
    assert ((covered >= 930) & (covered <= 970)).all(), covered


def test_the_interval_of_a_ratio_covers_it_with_a_shared_part() -> None:
    """As in % Gap: the same noisy baseline is subtracted above and below."""
    draw = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        base, looped, deep = draw.normal([10.0, 12.0, 15.0], 0.5)
        interval = ratio_interval(looped - base, deep - base, 0.5, 0.5, 0.25, 1.96)
        assert interval is not None
        covered += interval.low <= 0.4 <= interval.high
    assert 1880 <= covered <= 1920, covered


def test_a_ratio_to_what_may_be_zero_has_no_interval() -> None:
    assert ratio_interval(1.0, 0.1, 0.01, 0.01, 0.0, 1.96) is None
