"""% gap: where the looped model lies between its baselines, whatever the unit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from loopt.analysis import percent_gap
from loopt.analysis.gap import Measured, covariance_of_rates, gap_between
from loopt.evaluation.scores import bits_per_byte

scores = st.floats(-100, 100)


@given(iso_param=scores, iso_flop=scores)
def test_the_baselines_are_0_and_100(iso_param: float, iso_flop: float) -> None:
    assume(iso_param != iso_flop)
    assert percent_gap(iso_param, iso_param, iso_flop) == 0
    assert percent_gap(iso_flop, iso_param, iso_flop) == 100


@given(looped=scores, iso_param=scores, iso_flop=scores, scale=st.floats(-10, 10), shift=scores)
def test_the_unit_does_not_matter(looped: float, iso_param: float, iso_flop: float, scale: float, shift: float) -> None:
    assume(abs(iso_flop - iso_param) > 1e-2)
    assume(abs(scale) > 1e-2)
    mapped = percent_gap(*(scale * score + shift for score in (looped, iso_param, iso_flop)))
    assert mapped == pytest.approx(percent_gap(looped, iso_param, iso_flop), rel=1e-6, abs=1e-6)


@given(looped=scores, baseline=scores)
def test_no_gap_no_share(looped: float, baseline: float) -> None:
    assert math.isnan(percent_gap(looped, baseline, baseline))


def test_without_standard_errors_there_is_no_interval() -> None:
    gap = gap_between(Measured(12.0), Measured(10.0), Measured(15.0))
    assert gap.percent == pytest.approx(40)
    assert (gap.interval, gap.undefined) == (None, "")


def test_the_interval_holds_the_gap_and_grows_with_the_noise() -> None:
    widths = []
    for error in (0.1, 0.3, 0.9):
        gap = gap_between(Measured(12.0, error), Measured(10.0, error), Measured(15.0, error))
        assert gap.interval is not None
        assert gap.interval.low < 40 < gap.interval.high
        widths.append(gap.interval.high - gap.interval.low)
    assert widths == sorted(widths)


def test_at_the_ends_of_the_interval_the_looped_model_is_as_far_from_its_place_as_noise_goes() -> None:
    looped, base, deep = Measured(12.0, 0.3), Measured(10.0, 0.5), Measured(15.0, 0.4)
    interval = gap_between(looped, base, deep).interval
    assert interval is not None
    for end in interval:
        share = end / 100
        place = (1 - share) * base.value + share * deep.value
        noise = math.sqrt(0.3**2 + ((1 - share) * 0.5) ** 2 + (share * 0.4) ** 2)
        assert abs(looped.value - place) == pytest.approx(1.959964 * noise, rel=1e-6)


def test_what_is_not_defined_is_told_in_words() -> None:
    none = gap_between(Measured(12.0, 0.5), Measured(10.0, 0.5), Measured(10.0, 0.5))
    assert (none.percent, none.undefined) == (None, "no gap: both baselines have 10")
    lost = gap_between(Measured(12.0, 0.5), Measured(10.0, 0.5), Measured(11.0, 0.5))
    assert lost.percent is None
    assert lost.undefined == "within noise: the baselines differ by 1 ± 1.39"


def test_the_variance_of_a_rate_is_the_square_of_its_standard_error() -> None:
    sizes, nats = [3, 1, 7, 2], [[5.0, 1.0, 4.0, 2.5], [6.0, 2.0, 2.0, 0.5]]
    found = covariance_of_rates([[one / math.log(2) for one in of_model] for of_model in nats], sizes)
    for model, of_model in enumerate(nats):
        error = bits_per_byte(of_model, sizes).standard_error
        assert error is not None
        assert found[model][model] == pytest.approx(error**2)


def test_what_is_hard_for_all_models_alike_is_no_noise_of_the_gap() -> None:
    """Differences that are the same on every question are known exactly, however much the questions differ."""
    hard = torch.rand(50, generator=torch.Generator().manual_seed(0))
    amounts = [(hard + shift).tolist() for shift in (0.3, 0.5, 0.1)]
    looped, base, deep = (Measured(sum(of_model) / 50, 0.05) for of_model in amounts)
    interval = gap_between(looped, base, deep, covariance_of_rates(amounts, [1] * 50)).interval
    assert interval == pytest.approx((50, 50))
    alone = gap_between(looped, base, deep).interval
    assert alone is not None
    assert alone.low < 40
    assert alone.high > 60


def test_the_paired_interval_covers_as_often_as_it_says() -> None:
    draws, answers, generator = 400, 60, torch.Generator().manual_seed(1)
    covered = 0
    for _ in range(draws):
        hard = torch.rand(answers, generator=generator, dtype=torch.float64) * 4
        own = torch.rand(3, answers, generator=generator, dtype=torch.float64)
        amounts = hard + own + torch.tensor([[0.5], [1.0], [0.0]])  # so that the gap is 50%
        looped, base, deep = map(Measured, amounts.mean(1).tolist())
        found = gap_between(looped, base, deep, covariance_of_rates(amounts.tolist(), [1] * answers))
        assert found.interval is not None
        covered += found.interval.low <= 50 <= found.interval.high
    assert 0.92 < covered / draws < 0.98
