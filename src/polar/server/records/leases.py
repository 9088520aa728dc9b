"""Leases: which node holds which session, and until when. An expired lease puts the session back in the queue, as
its next attempt.

A session waits (QUEUED, no lease), is held (a lease, any stage) or has ended (a final stage, a result).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from polar.server.errors import Conflict
from polar.server.overview import live, log_lines
from polar.server.overview.engine_rate import note_use
from polar.server.overview.stage_counts import count_moves
from polar.server.records import policy
from polar.server.records.events import NewEvent, append
from polar.server.records.nodes import abilities_of, heard_now, is_draining, name_of, note_heartbeat, touch
from polar.server.records.results import finish, server_result, stop_if_enough
from polar.server.records.sessions import EARLIER, SessionRow, row_of, rows_of
from polar.server.records.tables import IS_HELD, IS_WAITING, sessions, tasks
from polar.server.records.tasks import request_of
from polar.server.scheduling import queue
from polar.server.scheduling.turns import Share, shares
from polar.server.scheduling.versions import of_our_protocol
from polar.server.state import Change
from polar.types import (
    EarlierAttempt,
    Failure,
    HandBack,
    Heartbeat,
    HeartbeatReply,
    HeldSession,
    Lease,
    LeaseReply,
    NodeAbilities,
    Stage,
    TaskRequest,
)

MAX_REPLY_BYTES = 64 * 2**20
"""Tasks in one lease reply: each lease carries its task, and a task may be large."""
KEPT_EARLIER = 200
"""How many earlier attempts a session keeps; the oldest are dropped."""
_ORDER = [Stage.QUEUED, Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN]


def lease(change: Change, node_id: str, room: int) -> LeaseReply:
    """Up to `room` sessions that the node can run, in the order of `scheduling/turns.py`."""
    touch(change, node_id)
    able = of_our_protocol(abilities_of(change.connection, node_id))
    rows: list[SessionRow] = []
    if not is_draining(change.connection, node_id):
        reply = _ReplySize(change.connection)
        while len(rows) < room and (batch := _next_in_line(change, able, room - len(rows), reply)):
            _grant(change, node_id, batch)
            rows += batch
    requests: dict[str, TaskRequest] = {}
    for row in rows:
        if row.task_id not in requests:
            requests[row.task_id] = request_of(change.connection, row.task_id)
    leases = tuple(
        Lease(session=row.session(node_id), task=requests[row.task_id], earlier=row.earlier_attempts)
        for row in rows
    )
    return LeaseReply(leases=leases, policy=policy.current(change.connection))


def _next_in_line(change: Change, able: NodeAbilities, room: int, reply: _ReplySize) -> list[SessionRow]:
    """At least one, if there is one that the node may have; the limit of a group may leave some of the room."""
    tasks = queue.next_tasks(change.connection, able, room)
    chosen = reply.fitting(shares(tasks, room, change.config.turn_sessions))
    counts = Counter[str]()
    for share in chosen:
        counts[share.task_id] += share.count
    if counts:
        queue.note_leased(change, tasks, counts)
    waiting = {task_id: iter(_first_waiting(change, task_id, count)) for task_id, count in counts.items()}
    return [next(waiting[share.task_id]) for share in chosen for _ in range(share.count)]


def _first_waiting(change: Change, task_id: str, count: int) -> list[SessionRow]:
    mine = select(sessions).where(IS_WAITING, sessions.c.task_id == task_id)
    return rows_of(change.connection, mine.order_by(sessions.c.number).limit(count))


class _ReplySize:
    """Ends a reply whose tasks would be too large together."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sizes: dict[str, int] = {}
        self._left: int | None = None
        """None: the reply is empty, and its first session may have any size."""

    def fitting(self, chosen: Sequence[Share]) -> list[Share]:
        """The first of them."""
        found: list[Share] = []
        for share in chosen:
            size = self._size_of(share.task_id)
            first = int(self._left is None)
            left = MAX_REPLY_BYTES - size if self._left is None else self._left
            count = min(share.count, first + max(0, left) // size)
            self._left = left - (count - first) * size
            if count:
                found.append(Share(share.task_id, count))
            if count < share.count:
                self._left = 0
                break
        return found

    def _size_of(self, task_id: str) -> int:
        if task_id not in self._sizes:
            size = select(func.length(tasks.c.body)).where(tasks.c.task_id == task_id)
            self._sizes[task_id] = self._connection.execute(size).scalar_one()
        return self._sizes[task_id]


def _grant(change: Change, node_id: str, rows: Sequence[SessionRow]) -> None:
    change.connection.execute(
        update(sessions)
        .where(sessions.c.session_id == bindparam("this"))
        .values(node_id=node_id, lease_expires=change.lease_expires, leased=change.now),
        [{"this": row.session_id} for row in rows],
    )
    append(change, [_stage_event(row, Stage.QUEUED, row.attempt, node_id) for row in rows])


def heartbeat(change: Change, node_id: str, beat: Heartbeat) -> HeartbeatReply:
    touch(change, node_id)
    note_heartbeat(change, node_id, beat)
    log_lines.take(change, node_id, beat)
    if beat.use is not None:
        note_use(change, node_id, beat.use)
    held = {row.session_id: row for row in held_by(change, node_id)}
    ours = [(held[one.session_id], one) for one in beat.sessions if _is_current(held.get(one.session_id), one)]
    current = {one.session_id for _, one in ours}
    _renew(change, ours)
    return HeartbeatReply(
        cancel=tuple(one.session_id for row, one in ours if row.cancel_requested),
        cancel_reasons={row.session_id: row.cancel_reason for row, _ in ours if row.cancel_reason},
        # An old attempt is not reported lost while the node also holds the newest: the id names both.
        lost=tuple(dict.fromkeys(one.session_id for one in beat.sessions if one.session_id not in current)),
        watched=live.watched_among(change, current),
        policy=policy.current(change.connection),
    )


def _is_current(row: SessionRow | None, one: HeldSession) -> bool:
    return row is not None and row.attempt == one.attempt


def _renew(change: Change, ours: Sequence[tuple[SessionRow, HeldSession]]) -> None:
    if not ours:
        return
    moved = [(row, one.stage) for row, one in ours if _is_later(one.stage, Stage(row.stage))]
    change.connection.execute(
        update(sessions)
        .where(sessions.c.session_id == bindparam("this"))
        .values(lease_expires=change.lease_expires, waited_s=bindparam("waited")),
        [{"this": row.session_id, "waited": one.waited_s} for row, one in ours],
    )
    if not moved:
        return
    change.connection.execute(
        update(sessions)
        .where(sessions.c.session_id == bindparam("this"))
        .values(stage=bindparam("now_in"), since=change.now),
        [{"this": row.session_id, "now_in": stage.value} for row, stage in moved],
    )
    count_moves(change, [(row.stage, stage.value) for row, stage in moved])
    append(change, [_stage_event(row, stage, row.attempt, row.node_id) for row, stage in moved])


def _is_later(reported: Stage, known: Stage) -> bool:
    """A late heartbeat must not set a stage back, and only a result ends a session."""
    return not reported.final and _ORDER.index(reported) > _ORDER.index(known)


def hand_back(change: Change, node_id: str, given: HandBack) -> None:
    touch(change, node_id)
    row = row_of(change.connection, given.session_id)
    if row.lease_expires is None or (row.node_id, row.attempt) != (node_id, given.attempt):
        raise Conflict(f"session {given.session_id}: attempt {given.attempt} is not leased to this node; drop it")
    give_back(change, [row], _Reason(given.where, given.why, given.counted))


def leave(change: Change, node_id: str) -> None:
    give_back(change, held_by(change, node_id), _Reason("node", "its node left"))


def expire(change: Change) -> int:
    """Takes back sessions whose node has stopped renewing their leases."""
    live.sweep(change)
    silent = select(sessions).where(IS_HELD, sessions.c.lease_expires <= change.now).order_by(sessions.c.number)
    rows = rows_of(change.connection, silent)
    if rows:
        change.counts.append(lambda counts: counts.leases_lost(len(rows)))
        change.wakes.add("policy")  # a drain waits for nodes that hold sessions

    def is_last(row: SessionRow) -> bool:
        return not row.cancel_requested and row.losses + 1 >= change.config.max_attempts

    finish(change, [server_result(row, Stage.FAILED, _lost_node(row)) for row in rows if is_last(row)])
    again = [row for row in rows if not is_last(row)]
    give_back(change, again, _Reason("node", "its node was lost"), losses=1)
    return len(rows)


def _lost_node(row: SessionRow) -> Failure:
    message = f"the node was lost in each of {row.losses + 1} attempts, the last one {row.node_id}, in {row.stage}"
    return Failure(where="node", type="LostNode", message=message)


def extend_all(change: Change) -> None:
    """After a time in which no node could renew: every lease has its full length from now on, also one that was
    granted by a clock that was ahead."""
    change.connection.execute(update(sessions).where(IS_HELD).values(lease_expires=change.lease_expires))


def renew_all(change: Change) -> None:
    """After the clock was set: besides, every node counts as just heard of. A lost node is noticed one lease
    later."""
    extend_all(change)
    heard_now(change)


def held_by(change: Change, node_id: str) -> list[SessionRow]:
    query = select(sessions).where(IS_HELD, sessions.c.node_id == node_id).order_by(sessions.c.number)
    return rows_of(change.connection, query)


@dataclass(frozen=True)
class _Reason:
    """Why an attempt ended without a result."""

    where: str
    why: str
    counted: bool = False


def give_back(change: Change, rows: Sequence[SessionRow], reason: _Reason, losses: int = 0) -> None:
    """Puts held sessions back in the queue as their next attempt; those with a cancel request, and those of a
    group that has enough, end."""
    finish(change, [server_result(row, Stage.CANCELLED) for row in rows if row.cancel_requested])
    again = [row for row in rows if not row.cancel_requested]
    if not again:
        return
    change.connection.execute(
        update(sessions)
        .where(sessions.c.session_id == bindparam("this"))
        .values(
            stage=Stage.QUEUED.value,
            since=change.now,
            leased=None,
            waited_s=0.0,
            attempt=sessions.c.attempt + 1,
            losses=sessions.c.losses + losses,
            node_id=None,
            lease_expires=None,
            earlier=bindparam("so_far"),
        ),
        [{"this": row.session_id, "so_far": _earlier_with(change, row, reason)} for row in again],
    )
    count_moves(change, [(row.stage, Stage.QUEUED.value) for row in again])
    live.forget(change, again)
    why = f"{reason.where}: {reason.why}"
    append(change, [_stage_event(row, Stage.QUEUED, row.attempt + 1, None, reason=why) for row in again])
    queue.note_given_back(change, again)
    for group_id in {row.group for row in again}:
        stop_if_enough(change, group_id)


def _earlier_with(change: Change, row: SessionRow, reason: _Reason) -> str:
    """The session's earlier attempts and the one that ends now, as JSON."""
    ended = EarlierAttempt(
        attempt=row.attempt,
        node=name_of(change.connection, row.node_id),
        where=reason.where,
        why=reason.why if reason.counted or reason.where != "node" else f"{reason.why}, in {row.stage}",
        counted=reason.counted,
    )
    return EARLIER.dump_json((*row.earlier_attempts, ended)[-KEPT_EARLIER:]).decode()


def _stage_event(row: SessionRow, stage: Stage, attempt: int, node_id: str | None, **more: Any) -> NewEvent:
    data = {"stage": stage.value, "attempt": attempt, **more}
    return NewEvent("stage", row.task_id, row.session_id, node_id, data)
