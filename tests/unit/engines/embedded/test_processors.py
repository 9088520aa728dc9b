"""How many threads an engine should take."""

from __future__ import annotations

import os
from itertools import cycle
from pathlib import Path

import pytest

from polar.engines.embedded import processors


async def test_at_least_one_and_no_more_than_there_are() -> None:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert 1 <= await processors.idle_processors() <= usable


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("cpu 0 0 0 200 0 0 0 0 0 0", 4),  # all idle
        ("cpu 100 0 0 100 0 0 0 0 0 0", 2),  # half of them busy
        ("cpu 190 0 10 0 0 0 0 0 0 0", 1),  # none idle: one all the same
        ("cpu 0 0 0 100 100 0 0 0 0 0", 4),  # waiting for a disk is not busy
        ("cpu 0 0 0 0 0 0 0 0 0 0", 4),  # no tick has passed
    ],
)
async def test_busy_processors_are_left_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: str, expected: int
) -> None:
    looks = cycle([[0] * 8, [int(x) for x in now.split()[1:9]]])
    monkeypatch.setattr(processors, "_times", lambda: next(looks))
    monkeypatch.setattr(processors, "WATCHED_S", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert await processors.idle_processors() == expected


async def test_one_quiet_look_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour that starts up is busy for a moment, and then it is not."""
    busy, quiet = [190, 0, 10, 0, 0, 0, 0, 0], [0, 0, 0, 200, 0, 0, 0, 0]
    looks = iter([[0] * 8, busy, [0] * 8, quiet])
    monkeypatch.setattr(processors, "_times", lambda: next(looks))
    monkeypatch.setattr(processors, "WATCHED_S", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert await processors.idle_processors() == 4


async def test_where_there_is_no_proc_the_load_tells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processors, "PROC_STAT", tmp_path / "absent")
    monkeypatch.setattr(os, "getloadavg", lambda: (3.2, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert await processors.idle_processors() == 1
