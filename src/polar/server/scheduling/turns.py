"""The order of leasing: by priority, and within a priority tasks take turns, the oldest first.

In its turn a task gets up to `server.turn_sessions` sessions. So a group of usual size is leased in one go and is
done early, and a task of thousands does not keep the tasks behind it waiting. Then it goes behind all tasks that
wait by now, and before those that come later: a stream of new tasks does not keep what is left of it waiting.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class QueuedTask:
    """A task with sessions that no node has."""

    task_id: str
    number: int
    """The order of submission."""
    priority: int
    turn: int
    """Its place in line. Tasks that joined together have the same; of them the oldest is first."""
    in_turn: int
    """Sessions that it got in this turn."""
    waiting: int
    room: int | None = None
    """How many more nodes may hold of it at once; None: any number."""
    group_id: str = ""
    group_room: int | None = None
    """The same for all tasks of its group."""


@dataclass(frozen=True)
class Share:
    """The next sessions of a task."""

    task_id: str
    count: int


def shares(tasks: Sequence[QueuedTask], room: int, turn_sessions: int) -> list[Share]:
    """Which tasks get `room` sessions, in the order in which they are leased."""
    order = [(-task.priority, task.turn, task.number, place) for place, task in enumerate(tasks)]
    heapq.heapify(order)
    last = {key[0]: 0 for key in order}
    for priority, turn, *_ in order:
        last[priority] = max(last[priority], turn)
    taken, of_group = Counter[str](), Counter[str]()
    found: list[Share] = []
    while order and room:
        priority, turn, number, place = heapq.heappop(order)
        task = tasks[place]
        in_turn = task.in_turn if turn == task.turn else 0
        limits = [room, turn_sessions - in_turn, task.waiting - taken[task.task_id]]
        limits += [task.room - taken[task.task_id]] if task.room is not None else []
        limits += [task.group_room - of_group[task.group_id]] if task.group_room is not None else []
        count = max(0, min(limits))
        if count:
            found.append(Share(task.task_id, count))
            taken[task.task_id] += count
            of_group[task.group_id] += count
            room -= count
        if count or in_turn >= turn_sessions:  # else a limit holds it back, which a further turn does not change
            heapq.heappush(order, (priority, max(turn, last[priority]) + 1, number, place))
    return found


def turn_after(task: QueuedTask, count: int, turn_sessions: int, last: int) -> tuple[int, int]:
    """The task's `turn` and `in_turn` when it has got so many sessions. `last`: the last turn of its priority."""
    more, in_turn = divmod(task.in_turn + count, turn_sessions)
    return (last + more if more else task.turn), in_turn
