"""The difference of two scores and its interval."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopt.analysis.difference import difference_between
from loopt.analysis.gap import Measured, covariance_of_rates

scores = st.floats(-100, 100)
errors = st.floats(0.01, 10)


@given(model=scores, base=scores, of_model=errors, of_base=errors)
def test_independent_errors_add_by_their_squares(model: float, base: float, of_model: float, of_base: float) -> None:
    found = difference_between(Measured(model, of_model), Measured(base, of_base))
    together = [[of_model**2, 0.0], [0.0, of_base**2]]
    paired = difference_between(Measured(model), Measured(base), together)
    assert found.value == model - base
    assert found.interval is not None
    assert paired.interval == pytest.approx(found.interval)
    assert found.interval.high - found.value == pytest.approx(1.959964 * math.hypot(of_model, of_base), rel=1e-6)
    assert found.beyond_noise == (abs(found.value) > 1.959963984540054 * math.hypot(of_model, of_base))


def test_without_standard_errors_nothing_is_said_of_noise() -> None:
    found = difference_between(Measured(3.0, 0.1), Measured(1.0))
    assert (found.value, found.interval, found.beyond_noise) == (2.0, None, False)


def test_the_paired_interval_covers_as_often_as_it_says() -> None:
    draws, answers, generator = 400, 60, torch.Generator().manual_seed(3)
    covered, width = 0, 0.0
    for _ in range(draws):
        hard = torch.rand(answers, generator=generator, dtype=torch.float64) * 4
        own = torch.rand(2, answers, generator=generator, dtype=torch.float64)
        amounts = hard + own + torch.tensor([[0.5], [0.0]])
        model, base = map(Measured, amounts.mean(1).tolist())
        found = difference_between(model, base, covariance_of_rates(amounts.tolist(), [1] * answers))
        assert found.interval is not None
        covered += found.interval.low <= 0.5 <= found.interval.high
        width += (found.interval.high - found.interval.low) / draws
    assert 0.92 < covered / draws < 0.98
    assert width < 0.25  # 0.62 if the errors were taken to be independent
