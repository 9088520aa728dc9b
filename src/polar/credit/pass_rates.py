"""pass@k and pass^k: how often k samples of a task solve it at least once, or every time.

Both are unbiased estimates from n ≥ k samples (every subset of k samples counts alike), not guesses from a rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from polar.credit.group import Group


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """The probability that at least one of k samples is solved."""
    _check(samples, solved, k)
    return 1.0 - math.comb(samples - solved, k) / math.comb(samples, k)


def pass_hat_k(samples: int, solved: int, k: int) -> float:
    """The probability that all of k samples are solved: pass^k, how reliable a policy is."""
    _check(samples, solved, k)
    return math.comb(solved, k) / math.comb(samples, k)


def mean_pass_at_k(groups: Iterable[Group], k: int = 1, *, at: float = 1.0) -> float:
    """The mean of pass@k over groups, each of at least k sessions. Every session counts: one that infrastructure
    failed is not solved. `at`: the reward from which on a session is solved."""
    return _mean(groups, k, at, pass_at_k)


def mean_pass_hat_k(groups: Iterable[Group], k: int = 1, *, at: float = 1.0) -> float:
    """The mean of pass^k over groups; see `mean_pass_at_k`."""
    return _mean(groups, k, at, pass_hat_k)


def wilson_interval(solved: float, samples: int, z: float = 1.96) -> tuple[float, float]:
    """The interval of a rate, 95 % by default. Unlike the normal one it holds near 0 and 1 and for few samples."""
    if samples == 0:
        return 0.0, 1.0
    rate, spread = solved / samples, z * z / samples
    centre = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / samples + spread / (4 * samples)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def _mean(groups: Iterable[Group], k: int, at: float, rate: Callable[[int, int, int], float]) -> float:
    rates = [rate(len(group.sessions), group.solved(at), k) for group in groups]
    if not rates:
        raise ValueError("pass rates need at least one group")
    return math.fsum(rates) / len(rates)


def _check(samples: int, solved: int, k: int) -> None:
    if not (0 <= solved <= samples and 1 <= k <= samples):
        raise ValueError(f"pass rates need 0 <= solved <= samples and 1 <= k <= samples: {solved}, {samples}, {k}")
