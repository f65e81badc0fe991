from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopt.errors import ConfigError
from loopt.runs.loop_counts import LOG_RATE_DEVIATION, LoopCounts

HUGINN = LoopCounts(1, 64, "lognormal_poisson", center=8.0)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 2**62), st.integers(0, 2**63 - 1))
def test_a_count_is_within_bounds_and_a_function_of_seed_and_step(low: int, more: int, step: int, seed: int) -> None:
    counts = LoopCounts(low, low + more)
    assert low <= counts.count_at(step, seed) <= low + more
    assert counts.count_at(step, seed) == LoopCounts(low, low + more).count_at(step, seed)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [LoopCounts(3, 7), HUGINN, LoopCounts(4, 12, "lognormal_poisson", center=6.0)])
def test_counts_come_as_often_as_they_are_said_to(counts: LoopCounts) -> None:
    steps = 4000
    seen = Counter(counts.count_at(step, seed=1) for step in range(steps))
    assert sum(counts.probabilities) == pytest.approx(1)
    for loops, share in enumerate(counts.probabilities, start=counts.low):
        assert abs(seen[loops] - steps * share) < 5 * (steps * share) ** 0.5 + 1


def test_uniform_counts_are_all_as_likely() -> None:
    assert LoopCounts(3, 7).probabilities == (0.2,) * 5


def test_the_log_normal_poisson_is_what_its_recipe_draws() -> None:
    generator = np.random.default_rng(0)
    rates = generator.lognormal(np.log(8.0) - LOG_RATE_DEVIATION**2 / 2, LOG_RATE_DEVIATION, 200_000)
    drawn = 1 + generator.poisson(rates)
    kept = drawn[drawn <= HUGINN.high]
    shares = np.bincount(kept, minlength=HUGINN.high + 1)[1:] / len(kept)
    assert np.abs(shares - HUGINN.probabilities).max() < 3e-3


@given(st.integers(1, 20), st.integers(1, 20), st.integers(20, 10**6), st.integers(0, 2**63 - 1))
def test_growing_counts_have_equal_shares_of_the_steps_before_the_last(
    low: int, more: int, until: int, seed: int
) -> None:
    counts = LoopCounts(low, low + more, "growing", until=until)
    steps = sorted({0, until - 1, until, 10 * until, *(until * i // more for i in range(more))})
    found = [counts.count_at(step, seed) for step in steps]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (low, low + more)
    assert counts.count_at(until, seed) == low + more
    assert counts.count_at(until - 1, seed) < low + more
    for loops in range(low, low + more):
        first, end = (-(-until * (i - low) // more) for i in (loops, loops + 1))
        assert all(counts.count_at(step, seed) == loops for step in {first, end - 1} if first < end)


def test_seeds_and_steps_are_unrelated() -> None:
    counts = LoopCounts(1, 10**5)
    assert len({counts.count_at(step, seed) for seed in range(10) for step in range(10)}) > 95


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"low": 0}, "low=0: allowed is 1 or more, since high=7"),
        ({"high": 2}, "high=2: allowed is low=3 or more"),
        ({"distribution": "geometric"}, "distribution=geometric: allowed is uniform | lognormal_poisson | growing"),
        ({"center": 4.0}, "center=4.0: allowed is none with distribution=uniform"),
        ({"distribution": "lognormal_poisson"}, "center=None: allowed is from low=3 to high=7"),
        ({"distribution": "lognormal_poisson", "center": 9.0}, "center=9.0: allowed is from low=3 to high=7"),
        ({"distribution": "lognormal_poisson", "center": float("nan")}, "center=nan: allowed is from low=3 to high=7"),
        ({"until": 5}, "until=5: allowed is none with distribution=uniform"),
        (
            {"distribution": "growing"},
            "until=None: allowed is 4 or more, a step for each number of loops before high=7",
        ),
        (
            {"distribution": "growing", "until": 3},
            "until=3: allowed is 4 or more, a step for each number of loops before high=7",
        ),
        ({"distribution": "growing", "low": 0, "high": 0}, "low=0: allowed is 1 or more with distribution=growing"),
        (
            {"distribution": "growing", "until": 5, "high": 3},
            "high=3: allowed is more than low=3 with distribution=growing",
        ),
        (
            {"distribution": "growing", "until": 5, "center": 4.0},
            "center=4.0: allowed is none with distribution=growing",
        ),
    ],
)
def test_bad_settings_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        replace(LoopCounts(3, 7), **change)  # type: ignore[arg-type]
    assert str(error.value) == f"loop_counts.{message}"
