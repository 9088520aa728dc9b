"""Intervals over tasks: they hold where the arithmetic is known, and never claim certainty from few tasks."""

from __future__ import annotations

import random

import pytest

from polar.credit.intervals import mean_over_tasks, paired_difference, wilson_estimate


def test_the_same_seed_gives_the_same_interval() -> None:
    rates = [number / 97 for number in range(97)]
    assert mean_over_tasks(rates, seed=1) == mean_over_tasks(rates, seed=1)
    assert mean_over_tasks(rates, seed=1) != mean_over_tasks(rates, seed=2)


def test_the_interval_of_a_mean_is_about_two_standard_errors_on_each_side() -> None:
    estimate = mean_over_tasks([0.0, 1.0] * 50)
    assert estimate.value == 0.5 and estimate.method == "bootstrap"
    assert estimate.low == pytest.approx(0.40, abs=0.02)
    assert estimate.high == pytest.approx(0.60, abs=0.02)


def test_samples_of_one_task_do_not_count_as_independent() -> None:
    """Ten tasks, each always or never solved: a hundred sessions say no more than ten."""
    over_tasks, over_sessions = mean_over_tasks([0.0, 1.0] * 5), wilson_estimate(50, 100)
    assert over_tasks.high - over_tasks.low > 2 * (over_sessions.high - over_sessions.low)


@pytest.mark.parametrize("rates", [[1.0] * 20, [0.0] * 20, [0.5]])
def test_without_spread_the_tasks_are_the_samples(rates: list[float]) -> None:
    estimate = mean_over_tasks(rates)
    assert estimate.method == "wilson" and estimate.value == rates[0]
    assert estimate.high - estimate.low > 0.15


def test_pairing_sees_a_gain_that_is_smaller_than_the_spread_of_the_tasks() -> None:
    draw = random.Random(0)
    before = [draw.choice([0.0, 0.3, 0.6]) for _ in range(40)]
    after = [rate + draw.choice([0.05, 0.15]) for rate in before]
    difference = paired_difference(before, after)
    assert 0.05 < difference.low < difference.value < difference.high < 0.15
    assert mean_over_tasks(before).high > mean_over_tasks(after).low


def test_a_difference_without_spread_is_not_certain() -> None:
    difference = paired_difference([0.0] * 10, [1.0] * 10)
    assert (difference.value, difference.high, difference.method) == (1.0, 1.0, "newcombe")
    assert 0.5 < difference.low < 0.8
    same = paired_difference([1.0] * 10, [1.0] * 10)
    assert same.low == -same.high < -0.2


@pytest.mark.parametrize("tasks", range(1, 40))
def test_a_value_is_inside_its_interval_in_spite_of_rounding(tasks: int) -> None:
    for rate in (0.0, 1 / 3, 1.0):
        estimate = mean_over_tasks([rate] * tasks)
        assert estimate.low <= estimate.value <= estimate.high


def test_nothing_has_no_mean() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        mean_over_tasks([])
    with pytest.raises(ValueError, match="at least one task"):
        paired_difference([], [])
