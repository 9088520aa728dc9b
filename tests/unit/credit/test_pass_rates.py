"""pass@k and pass^k against a count of all subsets."""

from __future__ import annotations

from itertools import combinations

import pytest

from polar.credit.pass_rates import pass_at_k, pass_hat_k, wilson_interval


@pytest.mark.parametrize(("samples", "solved"), [(1, 0), (1, 1), (4, 1), (6, 3), (7, 7)])
def test_they_are_the_share_of_all_subsets(samples: int, solved: int) -> None:
    outcomes = [True] * solved + [False] * (samples - solved)
    for k in range(1, samples + 1):
        subsets = list(combinations(outcomes, k))
        assert pass_at_k(samples, solved, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
        assert pass_hat_k(samples, solved, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


@pytest.mark.parametrize(("samples", "solved", "k"), [(3, 4, 1), (3, 1, 4), (3, 1, 0), (3, -1, 1)])
def test_what_cannot_be_estimated_is_refused(samples: int, solved: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass rates need"):
        pass_at_k(samples, solved, k)


def test_an_interval_stays_within_zero_and_one() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    low, high = wilson_interval(0, 10)
    assert low == 0.0 and 0.2 < high < 0.35
    low, high = wilson_interval(55, 96)
    assert (round(low, 2), round(high, 2)) == (0.47, 0.67)
