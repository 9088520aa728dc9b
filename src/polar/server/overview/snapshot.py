"""The state of the service at a glance, read in one go."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from polar import __version__
from polar.server.overview import group_list, outcomes
from polar.server.overview.engine_rate import rate_now
from polar.server.overview.stage_counts import sessions_by_stage
from polar.server.overview.stuck import stuck
from polar.server.records import nodes, policy
from polar.server.records.tables import HAS_WAITING, IS_HELD, IS_WAITING, events, queue, sessions, tasks
from polar.server.scheduling.waiting import why_all_wait
from polar.types import NodeStatus, Overview, Stage


def snapshot(connection: Connection, now: float, alive_since: float) -> Overview:
    # Read first: with two servers on one database, a change in between is then shown again and not missed.
    cursor = connection.execute(select(func.max(events.c.cursor))).scalar_one_or_none() or 0
    known = nodes.listing(connection, alive_since)
    current = policy.current(connection)
    rows = outcomes.newest(connection)
    return Overview(
        at=now,
        version=__version__,
        cursor=cursor,
        policy=current,
        stages=sessions_by_stage(connection),
        oldest_queued_s=_oldest_queued_s(connection, now),
        slots=sum(node.slots for node in known if free_to_lease(node)),
        busy=busy_slots(connection, known),
        nodes=tuple(known),
        rate=rate_now(connection, alive_since),
        window=len(rows),
        ended_per_minute=outcomes.ended_per_minute(rows, now),
        harnesses=outcomes.by_harness(rows),
        failures=outcomes.failures(rows),
        untrainable=outcomes.count_by(
            (row for row in rows if row.untrainable_reason), lambda r: r.untrainable_reason
        ),
        policy_updates=outcomes.count_by(rows, lambda row: row.policy_updates),
        stale=sum(row.stale for row in rows),
        contrast=group_list.contrast(connection),
        stuck=stuck(connection, now, known, paused=current.paused),
        waiting=why_all_wait(connection, known),
    )


def _oldest_queued_s(connection: Connection, now: float) -> float | None:
    """How long the session whose turn is next has waited."""
    order = (queue.c.priority.desc(), queue.c.turn, queue.c.number)
    first = connection.execute(select(queue.c.task_id).where(HAS_WAITING).order_by(*order).limit(1)).scalar()
    number = select(func.min(sessions.c.number)).where(IS_WAITING, sessions.c.task_id == first)
    since = func.coalesce(sessions.c.since, tasks.c.submitted)
    query = (
        select(since)
        .join_from(sessions, tasks, tasks.c.task_id == sessions.c.task_id)
        .where(sessions.c.number == number.scalar_subquery())
    )
    found = connection.execute(query).scalar_one_or_none()
    return None if found is None else max(0.0, now - found)


def free_to_lease(node: NodeStatus) -> bool:
    return node.alive and node.sick is None and not node.draining


def busy_slots(connection: Connection, known: Sequence[NodeStatus]) -> int:
    """Sessions in RUNNING at live nodes."""
    alive = {node.node_id for node in known if node.alive}
    query = (
        select(sessions.c.node_id, func.count())
        .where(IS_HELD, sessions.c.stage == Stage.RUNNING.value)
        .group_by(sessions.c.node_id)
    )
    return sum(count for node_id, count in connection.execute(query) if node_id in alive)
