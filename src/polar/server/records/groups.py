"""Groups: sessions are counted as they are submitted and as they end, so that a whole group is found without
looking at any other.

A task without a `group_id` is a group of its own, named like the task. A group that gains a task after it was done
is open again; when that task is done too, the group has a later cursor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, case, func, insert, select, update

from polar.server.errors import Conflict
from polar.server.records.tables import among, groups, results, sessions, tasks
from polar.server.retention.gaps import check_names, forget, unknown
from polar.server.state import Change
from polar.types import FinishedGroup, GroupPage, GroupStatus, Selection, SessionResult, TaskRequest


@dataclass(frozen=True)
class GroupRows:
    """Groups that are done, not parsed yet: the database thread has heartbeats to write."""

    found: Sequence[tuple[str, int, Sequence[str]]]
    """Group id, cursor, and the results as JSON."""
    all_done: bool

    @property
    def ready(self) -> bool:
        """There is no reason to wait for more."""
        return bool(self.found) or self.all_done


def grow(change: Change, task: TaskRequest) -> None:
    """Counts new sessions, in the transaction that submits them."""
    limits = {"max_running": task.group_max_running, "enough": task.enough, "on_enough": task.on_enough}
    known = change.connection.execute(select(groups).where(groups.c.group_id == task.group)).mappings().first()
    count = task.num_samples
    if known is None:
        last = change.connection.execute(select(func.max(groups.c.number))).scalar_one_or_none() or 0
        forget(change, "group", task.group)
        counts = {"sessions": count, "unfinished": count, "unfetched": count}
        row = {"group_id": task.group, "number": last + 1, **counts}
        change.connection.execute(insert(groups).values(**row, **limits))
        return
    for column, field in (("max_running", "group_max_running"), ("enough", "enough"), ("on_enough", "on_enough")):
        if known[column] != limits[column]:
            raise Conflict(
                f"{field}: the other tasks of group {task.group!r} have {known[column]}, this one has "
                f"{limits[column]}; give all tasks of a group the same, or choose another group_id"
            )
    grown = {name: groups.c[name] + count for name in ("sessions", "unfinished", "unfetched")}
    change.connection.execute(update(groups).where(groups.c.group_id == task.group).values(**grown, cursor=None))


@dataclass(frozen=True)
class FullGroup:
    """A group that has enough trainable sessions, and open ones beside them."""

    why: str
    also_held: bool
    """Whether sessions that a node holds are cancelled too."""


def has_enough(connection: Connection, group_id: str) -> FullGroup | None:
    row = connection.execute(select(groups).where(groups.c.group_id == group_id)).one()
    if row.enough is None or row.usable < row.enough or not row.unfinished:
        return None
    why = f"its group has {row.usable} trainable sessions; enough is {row.enough}"
    return FullGroup(why, row.on_enough == "cancel")


def shrink(change: Change, ended_sessions: Sequence[tuple[str, bool]]) -> None:
    """Counts results, in the transaction that records them: the group of each, and whether it is trainable."""
    ended = Counter(group_id for group_id, _ in ended_sessions)
    usable = Counter(group_id for group_id, trainable in ended_sessions if trainable)
    left = groups.c.unfinished - bindparam("ended")
    last = select(func.max(results.c.cursor)).where(results.c.group_id == groups.c.group_id).scalar_subquery()
    change.connection.execute(
        update(groups)
        .where(groups.c.group_id == bindparam("this"))
        .values(
            unfinished=left,
            usable=groups.c.usable + bindparam("more"),
            cursor=case((left == 0, last), else_=None),
        ),
        [{"this": group_id, "ended": count, "more": usable[group_id]} for group_id, count in ended.items()],
    )
    done = select(groups.c.group_id).where(groups.c.group_id.in_(ended), groups.c.unfinished == 0).limit(1)
    if change.connection.execute(done).first() is not None:
        change.wakes.add("groups")


def status(connection: Connection, group_id: str) -> GroupStatus:
    row = connection.execute(select(groups).where(groups.c.group_id == group_id)).one_or_none()
    if row is None:
        raise unknown(connection, "group", group_id)
    # Two conditions with an index each.
    named = select(tasks.c.number, tasks.c.task_id).where(tasks.c.group_id == group_id)
    alone = select(tasks.c.number, tasks.c.task_id).where(tasks.c.task_id == group_id, tasks.c.group_id.is_(None))
    found = connection.execute(named.union_all(alone).order_by("number")).all()
    return GroupStatus(
        group_id=group_id,
        task_ids=tuple(task.task_id for task in found),
        sessions=row.sessions,
        unfinished=row.unfinished,
        running=row.running,
        usable=row.usable,
        done=row.unfinished == 0,
        cursor=row.cursor,
    )


def selected(connection: Connection, wanted: Selection) -> list[str]:
    """The groups named, and those of the tasks named, without those that the client has read and retention has
    removed since. Raises `NotFound` for one that never was, and `Gone` for one that was removed unread."""
    group_id = func.coalesce(tasks.c.group_id, tasks.c.task_id)
    task_ids, group_ids = wanted.task_ids or (), wanted.group_ids or ()
    of_tasks = select(tasks.c.task_id, group_id).where(among(connection, tasks.c.task_id, task_ids))
    group_of = {task_id: group for task_id, group in connection.execute(of_tasks)}
    known = select(groups.c.group_id).where(among(connection, groups.c.group_id, group_ids))
    named = set(connection.execute(known).scalars())
    if missing := [task_id for task_id in task_ids if task_id not in group_of]:
        check_names(connection, "task", missing, wanted.after, allow_gap=wanted.allow_gap)
    if missing := [name for name in group_ids if name not in named]:
        check_names(connection, "group", missing, wanted.after, allow_gap=wanted.allow_gap)
    return sorted({*group_of.values(), *named})


def done_after(connection: Connection, after: int, limit: int, group_ids: Sequence[str] | None) -> GroupRows:
    """In the order in which they were done; of all groups, or of those given."""
    query = select(groups.c.group_id, groups.c.cursor).where(groups.c.cursor > after)
    if group_ids is not None:
        query = query.where(among(connection, groups.c.group_id, group_ids))
    rows = connection.execute(query.order_by(groups.c.cursor).limit(limit)).all()
    found = [(row.group_id, row.cursor, _results_of(connection, row.group_id)) for row in rows]
    return GroupRows(found, group_ids is not None and not any_open(connection, group_ids))


def any_open(connection: Connection, group_ids: Sequence[str]) -> bool:
    is_open = groups.c.cursor.is_(None)
    query = select(groups.c.group_id).where(among(connection, groups.c.group_id, group_ids), is_open).limit(1)
    return connection.execute(query).first() is not None


def page_of(rows: GroupRows, after: int) -> GroupPage:
    """Slow with large groups: call it in a thread."""
    found = tuple(
        FinishedGroup(
            group_id=group_id, cursor=cursor, results=tuple(map(SessionResult.model_validate_json, bodies))
        )
        for group_id, cursor, bodies in rows.found
    )
    return GroupPage(groups=found, cursor=found[-1].cursor if found else after, all_done=rows.all_done)


def _results_of(connection: Connection, group_id: str) -> list[str]:
    """In the order of submission."""
    query = (
        select(results.c.body)
        .join(sessions, sessions.c.session_id == results.c.session_id)
        .where(results.c.group_id == group_id)
        .order_by(sessions.c.number)
    )
    return list(connection.execute(query).scalars())
