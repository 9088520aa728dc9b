"""The order of leasing, as tables: who gets how many of the free places."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.server.scheduling.turns import QueuedTask, shares, turn_after


def queued(name: str, number: int, **fields: Any) -> QueuedTask:
    values = {"priority": 0, "turn": 0, "in_turn": 0, "waiting": 100, "group_id": name, **fields}
    return QueuedTask(name, number, **values)


@pytest.mark.parametrize(
    ("tasks", "room", "found"),
    [
        ([], 4, []),
        ([queued("a", 1)], 3, [("a", 3)]),
        ([queued("a", 1, waiting=2)], 3, [("a", 2)]),
        # The older first, a whole turn of it; then the other; then the first again.
        ([queued("b", 2), queued("a", 1)], 10, [("a", 4), ("b", 4), ("a", 2)]),
        # What was given earlier in this turn counts.
        ([queued("a", 1, in_turn=3), queued("b", 2)], 6, [("a", 1), ("b", 4), ("a", 1)]),
        # A task that is a turn ahead waits for the other.
        ([queued("a", 1, turn=1), queued("b", 2)], 6, [("b", 4), ("a", 2)]),
        # After its turn it is behind all others, however long they have waited.
        ([queued("a", 1), queued("b", 2, turn=7)], 13, [("a", 4), ("b", 4), ("a", 4), ("b", 1)]),
        # Priority comes before turns.
        ([queued("a", 1), queued("b", 2, priority=1, turn=9)], 6, [("b", 4), ("b", 2)]),
        ([queued("a", 1, priority=-1), queued("b", 2, waiting=1)], 3, [("b", 1), ("a", 2)]),
        # Limits of a task, and of a group across its tasks.
        ([queued("a", 1, room=3), queued("b", 2)], 9, [("a", 3), ("b", 4), ("b", 2)]),
        (
            [
                queued("a", 1, group_id="g", group_room=3),
                queued("b", 2, group_id="g", group_room=3),
                queued("c", 3),
            ],
            9,
            [("a", 3), ("c", 4), ("c", 2)],
        ),
        (
            [queued("a", 1, waiting=1, group_id="g", group_room=2), queued("b", 2, group_id="g", group_room=2)],
            9,
            [("a", 1), ("b", 1)],
        ),
        # A turn that was longer under another config is over.
        ([queued("a", 1, in_turn=9), queued("b", 2, waiting=1)], 3, [("b", 1), ("a", 2)]),
    ],
)
def test_who_gets_the_free_places(tasks: list[QueuedTask], room: int, found: list[tuple[str, int]]) -> None:
    assert [(share.task_id, share.count) for share in shares(tasks, room, 4)] == found


@pytest.mark.parametrize(
    ("in_turn", "count", "after"), [(0, 1, (5, 1)), (3, 1, (6, 0)), (2, 9, (7, 3)), (0, 4, (6, 0))]
)
def test_a_turn_ends_when_it_is_used_up(in_turn: int, count: int, after: tuple[int, int]) -> None:
    assert turn_after(queued("a", 1, turn=5, in_turn=in_turn), count, 4, last=5) == after


def test_a_task_that_has_had_its_turn_goes_behind_all_others() -> None:
    assert turn_after(queued("a", 1, turn=5, in_turn=3), 1, 4, last=30) == (31, 0)
    assert turn_after(queued("a", 1, turn=5, in_turn=2), 1, 4, last=30) == (5, 3)


def test_a_task_of_thousands_does_not_keep_a_later_small_one_waiting() -> None:
    """As the server leases: one place at a time, and the small task has the last turn."""
    large = queued("large", 1, waiting=10_000)
    for _ in range(1000):
        large = leased(large, 1, large.turn)
    small = queued("small", 2, waiting=8, turn=large.turn)
    order: list[str] = []
    while small.waiting:
        [share] = shares([large, small], 1, 4)
        order.append(share.task_id)
        last = max(large.turn, small.turn)
        if share.task_id == "large":
            large = leased(large, 1, last)
        else:
            small = leased(small, 1, last)
    assert len(order) <= 8 + 3 * 4


def leased(task: QueuedTask, count: int, last: int) -> QueuedTask:
    turn, in_turn = turn_after(task, count, 4, last)
    return QueuedTask(task.task_id, task.number, task.priority, turn, in_turn, task.waiting - count)


@given(
    st.lists(
        st.builds(
            QueuedTask,
            task_id=st.just(""),
            number=st.just(0),
            priority=st.integers(-1, 1),
            turn=st.integers(0, 3),
            in_turn=st.integers(0, 5),
            waiting=st.integers(1, 9),
            room=st.none() | st.integers(1, 4),
            group_id=st.sampled_from("gh"),
            group_room=st.just(5),
        ),
        max_size=8,
    ),
    st.integers(0, 20),
    st.integers(1, 5),
)
def test_no_limit_is_exceeded_and_no_place_is_left_that_could_be_used(
    drawn: list[QueuedTask], room: int, turn_sessions: int
) -> None:
    tasks = [
        QueuedTask(f"t{n}", n, t.priority, t.turn, t.in_turn, t.waiting, t.room, t.group_id, t.group_room)
        for n, t in enumerate(drawn)
    ]
    got = Counter[str]()
    for share in shares(tasks, room, turn_sessions):
        got[share.task_id] += share.count
    of_group = Counter[str]()
    for task in tasks:
        of_group[task.group_id] += got[task.task_id]
        assert got[task.task_id] <= min(task.waiting, task.room or task.waiting)
    assert all(count <= 5 for count in of_group.values()) and got.total() <= room
    if got.total() < room:
        full = {group for group, count in of_group.items() if count == 5}
        assert all(got[t.task_id] == min(t.waiting, t.room or t.waiting) for t in tasks if t.group_id not in full)
