"""The queue: how many sessions of each task wait and run, counted with every change, so that a lease looks at
tasks and not at all sessions.

A session without a result waits, or a node holds it. Each change of that is counted here, in its transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, Select, bindparam, delete, func, insert, or_, select, update

from polar.server.records.tables import HAS_WAITING, among, groups, needs, queue
from polar.server.scheduling.needs import needs_of
from polar.server.scheduling.stored_needs import fulfilled, needs_id_of
from polar.server.scheduling.turns import QueuedTask, turn_after
from polar.server.state import Change
from polar.types import NodeAbilities, TaskRequest

if TYPE_CHECKING:
    from polar.server.records.sessions import SessionRow


def enqueue(change: Change, task: TaskRequest, number: int) -> None:
    """All sessions of a new task wait. It is the last of its priority."""
    needs_id = needs_id_of(change.connection, needs_of(task))
    change.connection.execute(
        insert(queue).values(
            task_id=task.task_id,
            number=number,
            group_id=task.group,
            needs_id=needs_id,
            priority=task.priority,
            max_running=task.max_running,
            waiting=task.num_samples,
            turn=_last_turn(change.connection, task.priority),
        )
    )
    grown = update(needs).where(needs.c.needs_id == needs_id)
    change.connection.execute(grown.values(waiting=needs.c.waiting + task.num_samples))


def _last_turn(connection: Connection, priority: int) -> int:
    """Also of tasks whose sessions all run: those given back must not wait for later tasks."""
    last = select(func.max(queue.c.turn)).where(queue.c.priority == priority)
    return connection.execute(last).scalar_one_or_none() or 0


def next_tasks(connection: Connection, node: NodeAbilities, limit: int) -> list[QueuedTask]:
    """The tasks whose turn is next, of those that the node can run and no limit holds back."""
    able, unable = fulfilled(connection, node)
    if not able:
        return []
    below = or_(queue.c.max_running.is_(None), queue.c.running < queue.c.max_running)
    group_below = or_(groups.c.max_running.is_(None), groups.c.running < groups.c.max_running)
    query = (
        select(queue, groups.c.running.label("group_running"), groups.c.max_running.label("group_max"))
        .join(groups, groups.c.group_id == queue.c.group_id)
        .where(HAS_WAITING, below, group_below)
        .order_by(queue.c.priority.desc(), queue.c.turn, queue.c.number)
        .limit(limit)
    )
    rows = connection.execute(_among_needs(query, able, unable))
    return [_queued_task(row) for row in rows]


def is_empty(connection: Connection) -> bool:
    """No session waits, for whichever node."""
    return connection.execute(select(needs.c.needs_id).where(HAS_WAITING).limit(1)).first() is None


def _among_needs(query: Select[Any], able: Collection[int], unable: Collection[int]) -> Select[Any]:
    """By the shorter list: mostly all nodes can run everything."""
    if not unable:
        return query
    return query.where(queue.c.needs_id.in_(able) if len(able) <= len(unable) else queue.c.needs_id.not_in(unable))


def _queued_task(row: Row[Any]) -> QueuedTask:
    return QueuedTask(
        task_id=row.task_id,
        number=row.number,
        priority=row.priority,
        turn=row.turn,
        in_turn=row.in_turn,
        waiting=row.waiting,
        room=None if row.max_running is None else row.max_running - row.running,
        group_id=row.group_id,
        group_room=None if row.group_max is None else row.group_max - row.group_running,
    )


def note_leased(change: Change, tasks: Sequence[QueuedTask], counts: Counter[str]) -> None:
    """`counts`: how many sessions of each task a node got."""
    leased = [task for task in tasks if counts[task.task_id]]
    last = {priority: _last_turn(change.connection, priority) for priority in {task.priority for task in leased}}
    turns = [
        turn_after(task, counts[task.task_id], change.config.turn_sessions, last[task.priority]) for task in leased
    ]
    change.connection.execute(
        update(queue)
        .where(queue.c.task_id == bindparam("this"))
        .values(turn=bindparam("next_turn"), in_turn=bindparam("got")),
        [
            {"this": task.task_id, "next_turn": turn, "got": in_turn}
            for task, (turn, in_turn) in zip(leased, turns, strict=True)
        ],
    )
    _count(change, counts, waiting=-1, running=1)
    of_group = Counter[str]()
    for task in leased:
        of_group[task.group_id] += counts[task.task_id]
    _count_running(change, of_group, 1)


def note_given_back(change: Change, rows: Sequence[SessionRow]) -> None:
    """Held sessions wait again."""
    _count(change, Counter(row.task_id for row in rows), waiting=1, running=-1)
    _count_running(change, Counter(row.group for row in rows), -1)
    change.wakes.add("queue")


def note_ended(change: Change, rows: Sequence[SessionRow]) -> None:
    """A task without open sessions leaves the queue."""
    held = [row for row in rows if row.lease_expires is not None]
    never_held = Counter(row.task_id for row in rows if row.lease_expires is None)
    _count(change, never_held, waiting=-1, running=0)
    _count(change, Counter(row.task_id for row in held), waiting=0, running=-1)
    _count_running(change, Counter(row.group for row in held), -1)
    task_ids = {row.task_id for row in rows}
    mine = among(change.connection, queue.c.task_id, task_ids)
    change.connection.execute(delete(queue).where(mine, queue.c.waiting == 0, queue.c.running == 0))
    if held:
        _wake_if_limited(change, held)


def _count(change: Change, counts: Counter[str], *, waiting: int, running: int) -> None:
    """By task."""
    if not counts:
        return
    given = [{"this": task_id, "w": waiting * count, "r": running * count} for task_id, count in counts.items()]
    change.connection.execute(
        update(queue)
        .where(queue.c.task_id == bindparam("this"))
        .values(waiting=queue.c.waiting + bindparam("w"), running=queue.c.running + bindparam("r")),
        given,
    )
    if not waiting:
        return
    of_needs = Counter[int]()
    found = select(queue.c.task_id, queue.c.needs_id).where(among(change.connection, queue.c.task_id, counts))
    for task_id, needs_id in change.connection.execute(found):
        of_needs[needs_id] += waiting * counts[task_id]
    change.connection.execute(
        update(needs)
        .where(needs.c.needs_id == bindparam("this"))
        .values(waiting=needs.c.waiting + bindparam("w")),
        [{"this": needs_id, "w": difference} for needs_id, difference in of_needs.items()],
    )


def _count_running(change: Change, counts: Counter[str], sign: int) -> None:
    """By group."""
    if counts:
        change.connection.execute(
            update(groups)
            .where(groups.c.group_id == bindparam("this"))
            .values(running=groups.c.running + bindparam("r")),
            [{"this": group_id, "r": sign * count} for group_id, count in counts.items()],
        )


def _wake_if_limited(change: Change, rows: Sequence[SessionRow]) -> None:
    """A session that ended makes room for another of its task or group, also at nodes that wait for one."""
    task_ids, group_ids = {row.task_id for row in rows}, {row.group for row in rows}
    of_task = among(change.connection, queue.c.task_id, task_ids)
    of_group = among(change.connection, groups.c.group_id, group_ids)
    for limited in (
        select(queue.c.task_id).where(of_task, queue.c.max_running.is_not(None)),
        select(groups.c.group_id).where(of_group, groups.c.max_running.is_not(None)),
    ):
        if change.connection.execute(limited.limit(1)).first() is not None:
            change.wakes.add("queue")
