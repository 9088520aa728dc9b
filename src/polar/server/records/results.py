"""Results: each session gets exactly one, from its node or from the server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    func,
    insert,
    or_,
    select,
    union,
    update,
)

from polar.server.errors import Conflict, Invalid
from polar.server.overview import live, outcomes
from polar.server.overview.stage_counts import count_moves
from polar.server.records import callbacks, groups
from polar.server.records.events import NewEvent, append
from polar.server.records.sessions import SessionRow, row_of, rows_of
from polar.server.records.tables import IS_OPEN, IS_WAITING, among, results, sessions
from polar.server.records.uploads import Upload, drop_parts, keep_last, keep_part, put_blob
from polar.server.scheduling import queue
from polar.server.state import Change, State
from polar.types import Failure, ResultEntry, ResultPage, Selection, SessionResult, Stage

Ending = tuple[SessionRow, SessionResult]


@dataclass(frozen=True)
class ResultFilter:
    task_id: str | None = None
    group_id: str | None = None


async def take(state: State, node_id: str, upload: Upload) -> None:
    """Stores a node's result with its upload: first the blob, then the result that names it."""
    if await state.read(_ending_session, node_id, upload) is None:
        return
    upload = await put_blob(state, upload)
    for number in range(upload.parts):
        if not await state.change(_keep_part, node_id, upload, number):
            return
    await state.change(record, node_id, upload)


def _keep_part(change: Change, node_id: str, upload: Upload, number: int) -> bool:
    """False: the session already has its result."""
    if wanted := _ending_session(change.connection, node_id, upload) is not None:
        keep_part(change, upload, number)
    return wanted


def record(change: Change, node_id: str, upload: Upload) -> None:
    """A repetition is no error: the node did not receive the first acknowledgement."""
    row = _ending_session(change.connection, node_id, upload)
    if row is not None:
        keep_last(change, upload)
        finish(change, [(row, upload.result)], node_id)
        stop_if_enough(change, row.group)


def stop_if_enough(change: Change, group_id: str) -> None:
    """Cancels what is left of a group that has as many trainable sessions as its tasks want."""
    if (full := groups.has_enough(change.connection, group_id)) is not None:
        cancel_open(change, of_group(group_id), full.why, also_held=full.also_held)


def cancel_open(
    change: Change, chosen: ColumnElement[bool], why: str = "", *, also_held: bool = True
) -> list[SessionRow]:
    """A waiting session ends at once; a held one when its node has read its next heartbeat reply. `why`: empty if
    a client asked. Returns the sessions that had not ended."""
    wanted = (chosen, IS_OPEN)
    rows = rows_of(change.connection, select(sessions).where(*wanted).order_by(sessions.c.number))
    first = func.coalesce(sessions.c.cancelled, change.now)
    reason = case((sessions.c.cancel_requested, sessions.c.cancel_reason), else_=why)
    marked = update(sessions).where(*wanted).values(cancel_requested=True, cancelled=first, cancel_reason=reason)
    change.connection.execute(marked if also_held else marked.where(IS_WAITING))
    ended = [replace(row, cancel_reason=why) for row in rows if row.lease_expires is None]
    finish(change, [server_result(row, Stage.CANCELLED) for row in ended])
    return rows


def of_group(group_id: str) -> ColumnElement[bool]:
    """A task that names no group is a group of its own."""
    alone = and_(sessions.c.group_id.is_(None), sessions.c.task_id == group_id)
    return or_(sessions.c.group_id == group_id, alone)


def _ending_session(connection: Connection, node_id: str, upload: Upload) -> SessionRow | None:
    """The session of this result; None if it already has one. Refuses a node that does not hold the session."""
    result = upload.result
    row = row_of(connection, result.session_id)
    if (row.node_id, row.attempt) != (node_id, result.attempt):
        raise Conflict(
            f"session {result.session_id}: attempt {result.attempt} is no longer leased to this node; "
            "drop it, it runs or ran elsewhere"
        )
    if Stage(row.stage).final:
        return None
    if (result.task_id, result.index) != (row.task_id, row.index):
        raise Invalid(f"session {result.session_id} is sample {row.index} of task {row.task_id!r}")
    return row


def server_result(row: SessionRow, stage: Stage, failure: Failure | None = None) -> Ending:
    """The result of a session that no node will report."""
    result = SessionResult(
        session_id=row.session_id,
        task_id=row.task_id,
        group_id=row.group,
        index=row.index,
        attempt=row.attempt,
        stage=stage,
        attempts=row.earlier_attempts,
        failure=failure,
        cancel_reason=row.cancel_reason if stage is Stage.CANCELLED else "",
    )
    return row, result


def finish(change: Change, endings: Sequence[Ending], node_id: str | None = None) -> None:
    """Ends sessions. `node_id`: the node that made the results; None: the server made them."""
    if not endings:
        return
    change.connection.execute(insert(results), [_result_row(row, result) for row, result in endings])
    outcomes.record(change, endings, node_id)
    count_moves(change, [(row.stage, result.stage.value) for row, result in endings])
    change.connection.execute(
        update(sessions)
        .where(sessions.c.session_id == bindparam("this"))
        .values(stage=bindparam("final"), since=change.now, node_id=node_id, lease_expires=None, leased=None),
        [{"this": row.session_id, "final": result.stage.value} for row, result in endings],
    )
    if node_id is None:
        drop_parts(change, [row.session_id for row, _ in endings])
    append(change, [_result_event(row, result, node_id) for row, result in endings])
    queue.note_ended(change, [row for row, _ in endings])
    groups.shrink(change, [(row.group, result.trainable) for row, result in endings])
    live.forget(change, [row for row, _ in endings])
    callbacks.add(change, [result for _, result in endings])
    change.counts.append(lambda counts: counts.ended([(row.harness, result) for row, result in endings]))
    change.wakes.add("results")


@dataclass(frozen=True)
class ResultRows:
    """Results not parsed yet: the database thread has heartbeats to write."""

    found: Sequence[tuple[int, str]]
    """Cursor and JSON."""
    all_done: bool

    @property
    def ready(self) -> bool:
        """There is no reason to wait for more."""
        return bool(self.found) or self.all_done


def rows_after(connection: Connection, after: int, limit: int, only: ResultFilter) -> list[tuple[int, str]]:
    """Cursor and JSON of each result. Parsed elsewhere: the database thread has heartbeats to write."""
    query = select(results.c.cursor, results.c.body).where(results.c.cursor > after)
    if only.task_id is not None:
        query = query.where(results.c.task_id == only.task_id)
    if only.group_id is not None:
        query = query.where(results.c.group_id == only.group_id)
    rows = connection.execute(query.order_by(results.c.cursor).limit(limit))
    return [(cursor, body) for cursor, body in rows]


def selected(connection: Connection, wanted: Selection) -> ResultRows:
    """Results of the selected tasks and groups, which must exist."""
    if wanted.everything:
        return ResultRows(rows_after(connection, wanted.after, wanted.limit, ResultFilter()), all_done=False)
    task_ids, group_ids = wanted.task_ids or (), wanted.group_ids or ()
    later = select(results.c.cursor).where(results.c.cursor > wanted.after)
    # One index each. The bodies are read afterwards: sorting must not read those of later pages.
    of_tasks = later.where(among(connection, results.c.task_id, task_ids))
    of_groups = later.where(among(connection, results.c.group_id, group_ids))
    cursors = list(connection.execute(union(of_tasks, of_groups).order_by("cursor").limit(wanted.limit)).scalars())
    bodies = select(results.c.cursor, results.c.body).where(results.c.cursor.in_(cursors))
    found = [(cursor, body) for cursor, body in connection.execute(bodies.order_by(results.c.cursor))]
    is_open = select(sessions.c.task_id).where(IS_OPEN, among(connection, sessions.c.task_id, task_ids)).limit(1)
    all_done = connection.execute(is_open).first() is None and not groups.any_open(connection, group_ids)
    return ResultRows(found, all_done)


def page_of(rows: ResultRows, after: int) -> ResultPage:
    """Slow with many rows: call it in a thread."""
    entries = tuple(
        ResultEntry(cursor=cursor, result=SessionResult.model_validate_json(body)) for cursor, body in rows.found
    )
    return ResultPage(results=entries, cursor=entries[-1].cursor if entries else after, all_done=rows.all_done)


def _result_row(row: SessionRow, result: SessionResult) -> dict[str, Any]:
    return {
        "session_id": row.session_id,
        "task_id": row.task_id,
        "group_id": row.group,
        "body": json.dumps(result.model_dump(mode="json")),
    }


def _result_event(row: SessionRow, result: SessionResult, node_id: str | None) -> NewEvent:
    data: dict[str, Any] = {"stage": result.stage.value, "attempt": result.attempt, "reward": result.reward}
    if result.cancel_reason:
        data["reason"] = result.cancel_reason
    return NewEvent("result", row.task_id, row.session_id, node_id, data)
