"""Pauses double up to a limit, are random where wanted, and start again after a success."""

from __future__ import annotations

from polar.back_off import BackOff


def test_a_back_off_grows_to_its_limit_and_begins_again() -> None:
    back_off = BackOff(first_s=1.0, longest_s=4.0)
    waits = [back_off.next_s() for _ in range(100)]
    assert 0.5 <= waits[0] <= 1.0 and 1.0 <= waits[1] <= 2.0
    assert all(2.0 <= wait <= 4.0 for wait in waits[2:])
    assert len(set(waits)) > 90, "two nodes do not come back in step"
    back_off.reset()
    assert back_off.next_s() <= 1.0


def test_pauses_do_not_grow_for_ever() -> None:
    assert all(BackOff(1.0, 60.0, failures=failures).next_s() <= 60.0 for failures in (0, 9, 1000, 10**6))


def test_without_jitter_pauses_are_exact() -> None:
    back_off = BackOff(first_s=1.0, longest_s=5.0, jitter=0)
    assert [back_off.next_s() for _ in range(5)] == [1, 2, 4, 5, 5]
