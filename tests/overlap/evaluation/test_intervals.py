"""The intervals of pass@k and of its change hold the truth as often as they say, by simulation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap.evaluation.intervals import change_interval, effective_samples, mean_interval, rate_interval

RUNS = 1000
MEANS = (0.01, 0.05, 0.2, 0.5)
SIZES = pytest.mark.parametrize(
    ("problems", "samples"), [(32, 1), (32, 16), pytest.param(164, 4, marks=pytest.mark.wide)]
)
RATES = st.lists(st.floats(0, 1), min_size=1, max_size=40)


def difficulties(rng: np.random.Generator, spread: str, mean: float, shape: tuple[int, int]) -> np.ndarray:
    """Pass rates of problems [runs, problems] whose expectation is ``mean``."""
    if spread == "none":
        return np.full(shape, mean)
    if spread == "all or nothing":
        return (rng.random(shape) < mean).astype(float)
    if spread == "few always, most seldom":  # half of the mean comes from either
        return np.where(rng.random(shape) < mean / 2, 1.0, mean / 2 / (1 - mean / 2))
    concentration = float(spread.removeprefix("beta "))
    return rng.beta(mean * concentration, (1 - mean) * concentration, shape)


SPREADS = ("none", "all or nothing", "few always, most seldom", "beta 0.3", "beta 1", "beta 3", "beta 20")


def coverage(interval: Callable[[list[float]], tuple[float, float]], values: np.ndarray, truth: float) -> float:
    """Share of the rows of ``values`` [runs, problems] whose interval holds the truth. Equal rows are computed once."""
    rows, counts = np.unique(np.sort(values, axis=1), axis=0, return_counts=True)
    bounds = [interval(row.tolist()) for row in rows]
    return sum(int(n) for n, (low, high) in zip(counts, bounds, strict=True) if low <= truth <= high) / len(values)


@pytest.mark.promise("evaluation")
@SIZES
def test_the_interval_of_a_rate_holds_the_truth_in_93_percent_of_runs(problems: int, samples: int) -> None:
    rng = np.random.default_rng(problems + samples)
    for mean, spread in itertools.product(MEANS, SPREADS if samples > 1 else SPREADS[:1]):
        passes = rng.binomial(samples, difficulties(rng, spread, mean, (RUNS, problems)))
        found = coverage(lambda row: rate_interval(row, samples), passes / samples, mean)
        assert found >= 0.93, (mean, spread)


@pytest.mark.promise("evaluation")
@SIZES
def test_the_interval_of_a_change_holds_the_truth_in_93_percent_of_runs(problems: int, samples: int) -> None:
    rng = np.random.default_rng(problems * samples)
    for mean, spread, gain in itertools.product(MEANS, ("none", "all or nothing", "beta 1", "beta 20"), (0.0, 0.1)):
        before = difficulties(rng, spread, mean, (RUNS, problems))
        learned = rng.random(before.shape) < gain  # a share of the problems is solved for good
        after = np.where(learned, 1.0, before)
        changes = (rng.binomial(samples, after) - rng.binomial(samples, before)) / samples
        assert coverage(change_interval, changes, gain * (1 - mean)) >= 0.93, (mean, spread, gain)


@given(RATES, st.integers(1, 64))
def test_an_interval_holds_the_mean_and_stays_within_0_and_1(rates: list[float], draws: int) -> None:
    low, high = rate_interval(rates, draws)
    mean = sum(rates) / len(rates)
    assert 0 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1
    assert len(rates) - 1e-9 <= effective_samples(rates, draws) <= draws * len(rates) + 1e-6


def test_equal_outcomes_leave_as_much_doubt_as_their_number_does() -> None:
    assert rate_interval([0.0] * 32)[1] == pytest.approx(rate_interval([0.0] * 32, 16)[1])
    assert 0.08 < rate_interval([0.0] * 32)[1] < 0.14
    assert rate_interval([0.0] * 1000)[1] < 0.005
    assert change_interval([0.0] * 32)[0] == pytest.approx(-0.08, abs=0.02)


def test_samples_count_as_independent_ones_as_far_as_the_spread_between_problems_lets_them() -> None:
    alike, spread = [0.5] * 400, [(i % 5) / 4 for i in range(400)]  # variance 0 and 0.125
    assert effective_samples(alike, 4) == pytest.approx(1600, rel=0.05)
    assert effective_samples(spread, 1) == 400
    assert effective_samples(spread, 64) == pytest.approx(800, rel=0.2)
    low, high = rate_interval(spread, 4)
    assert high - low == pytest.approx(2 * 1.96 * (0.125 / 400) ** 0.5, rel=0.05)


def test_a_mean_of_rewards_has_the_interval_of_its_spread_and_of_one_problem_none() -> None:
    assert mean_interval([0.0, 2.0, 4.0]) == pytest.approx((2 - 1.96 * 2 / 3**0.5, 2 + 1.96 * 2 / 3**0.5), abs=1e-3)
    assert all(map(isnan, mean_interval([1.0])))
