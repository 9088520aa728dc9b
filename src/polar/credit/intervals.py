"""How sure a rate is: 95 % intervals of rates over a task set, and of the difference between two policies.

The samples of one task are not independent: a task is easy or hard for all of them. So an interval comes from
drawing whole tasks again and again with replacement (a cluster bootstrap, seeded), and two policies are compared
task by task. The bootstrap sees no spread where all tasks have the same rate, such as 1.0. Then the interval is
Wilson's, each task counted as one sample, so that twenty solved tasks are not taken for certainty.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Literal

from polar.credit.pass_rates import wilson_interval
from polar.types import Strict

CONFIDENCE = 0.95
RESAMPLES = 2000

IntervalMethod = Literal["bootstrap", "wilson", "newcombe"]
"""bootstrap: over tasks. wilson: of independent samples. newcombe: the difference of two Wilson intervals."""


class Estimate(Strict):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float
    method: IntervalMethod


def wilson_estimate(solved: float, samples: int) -> Estimate:
    """A rate of independent samples; of none, the interval is all there is."""
    low, high = wilson_interval(solved, samples)
    return _estimate(solved / samples if samples else 0.0, low, high, "wilson")


def mean_over_tasks(rates: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """The mean of one rate per task."""
    if not rates:
        raise ValueError("a mean over tasks needs at least one task")
    if _same(rates):
        return wilson_estimate(rates[0] * len(rates), len(rates))
    return _bootstrap(rates, seed, resamples)


def paired_difference(
    before: Sequence[float], after: Sequence[float], seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """The mean of `after - before`, whose rates are of the same tasks in the same order."""
    if not before:
        raise ValueError("a paired difference needs at least one task")
    differences = [new - old for old, new in zip(before, after, strict=True)]
    if _same(differences):
        return _newcombe(before, after)
    return _bootstrap(differences, seed, resamples)


def _estimate(value: float, low: float, high: float, method: IntervalMethod) -> Estimate:
    """The value is never outside its interval, not even by rounding."""
    return Estimate(value=value, low=min(low, value), high=max(high, value), method=method)


def _same(values: Sequence[float]) -> bool:
    return math.isclose(min(values), max(values), abs_tol=1e-12)


def _bootstrap(values: Sequence[float], seed: int, resamples: int) -> Estimate:
    draw, count = random.Random(seed), len(values)
    means = sorted(math.fsum(draw.choices(values, k=count)) / count for _ in range(resamples))
    tail = (1 - CONFIDENCE) / 2
    low, high = means[math.floor(tail * resamples)], means[math.ceil((1 - tail) * resamples) - 1]
    return _estimate(math.fsum(values) / count, low, high, "bootstrap")


def _newcombe(before: Sequence[float], after: Sequence[float]) -> Estimate:
    old = wilson_estimate(math.fsum(before), len(before))
    new = wilson_estimate(math.fsum(after), len(after))
    value = new.value - old.value
    low = value - math.hypot(new.value - new.low, old.high - old.value)
    high = value + math.hypot(new.high - new.value, old.value - old.low)
    return Estimate(value=value, low=max(-1.0, low), high=min(1.0, high), method="newcombe")
