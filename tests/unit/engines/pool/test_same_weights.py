"""Which version replicas should have, and who has another one."""

from __future__ import annotations

import pytest

from polar.engines.pool.replica import Replica
from polar.engines.pool.same_weights import WeightState, current_version, drift, stale


@pytest.mark.parametrize(
    ("versions", "policy", "current"),
    [
        (["", ""], "", ""),
        (["", ""], "7", ""),  # servers that name none
        (["7", "7"], "7", "7"),
        (["7", "8"], "8", "8"),
        (["8", "8"], "7", "8"),  # the node has not heard of it yet
        (["7", ""], "", "7"),  # one was restarted, and this node has just started
        (["", "7", ""], "", "7"),
        (["7", "8", "8"], "", "8"),
        (["6", "7"], "7", "7"),
    ],
)
def test_the_current_version(versions: list[str], policy: str, current: str) -> None:
    assert current_version(versions, policy) == current


def test_who_has_another_one() -> None:
    one, two, three = (Replica(name, object) for name in "abc")
    states = {one: WeightState("7"), two: WeightState(""), three: WeightState("6")}
    found = stale(states, "7")
    assert found.keys() == {two, three}
    assert "version (none named), the pool those of 7" in found[two]
    assert "version 6, the pool those of 7" in found[three]


def test_drift_is_the_mean_difference() -> None:
    assert drift(WeightState("", (-1.0, -2.0)), WeightState("", (-1.5, -2.1))) == pytest.approx(0.3)
    assert drift(WeightState(""), WeightState("", (-1.0,))) == 0.0
