"""Results: each session gets exactly one, whoever makes it; then it is an event, a callback, part of a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from polar.server import callbacks
from polar.server.records.events import News, append
from polar.server.records.rows import SessionRow, row_of
from polar.server.records.tables import results, sessions
from polar.server.refusals import Conflict, Invalid
from polar.server.state import Change, State
from polar.server.uploads import Upload, drop_parts, keep_last, keep_part
from polar.types import Failure, ResultEntry, ResultPage, SessionResult, Stage

Ending = tuple[SessionRow, SessionResult]


@dataclass(frozen=True)
class Filter:
    task_id: str | None = None
    group_id: str | None = None


async def take(state: State, node_id: str, upload: Upload) -> None:
    """A node's result with its blob, however large that is."""
    for number in range(upload.parts):
        if not await state.change(_keep_part, node_id, upload, number):
            return
    await state.change(record, node_id, upload)


def _keep_part(change: Change, node_id: str, upload: Upload, number: int) -> bool:
    """False: the session has its result, and needs no blob."""
    if wanted := _ending_session(change, node_id, upload) is not None:
        keep_part(change, upload, number)
    return wanted


def record(change: Change, node_id: str, upload: Upload) -> None:
    """A node's result of a session it holds. The same once more is an acknowledgement that got lost: no error."""
    row = _ending_session(change, node_id, upload)
    if row is not None:
        keep_last(change, upload)
        finish(change, [(row, upload.result)], node_id)


def _ending_session(change: Change, node_id: str, upload: Upload) -> SessionRow | None:
    """The session whose result this is; None where it has one. Refuses a node that does not hold it."""
    result = upload.result
    row = row_of(change.connection, result.session_id)
    if (row.node_id, row.attempt) != (node_id, result.attempt):
        raise Conflict(
            f"session {result.session_id}: attempt {result.attempt} is not this node's any more; "
            "drop it, it runs or ran elsewhere"
        )
    if Stage(row.stage).final:
        return None
    if (result.task_id, result.index) != (row.task_id, row.index):
        raise Invalid(f"session {result.session_id} is sample {row.index} of task {row.task_id!r}")
    return row


def made_by_server(row: SessionRow, stage: Stage, failure: Failure | None = None) -> Ending:
    """The end of a session that no node will report."""
    result = SessionResult(
        session_id=row.session_id,
        task_id=row.task_id,
        group_id=row.group_id or row.task_id,
        index=row.index,
        attempt=row.attempt,
        stage=stage,
        attempts=row.earlier_attempts,
        failure=failure,
    )
    return row, result


def finish(change: Change, endings: Sequence[Ending], node_id: str | None = None) -> None:
    """Ends sessions that have not ended. Without a `node_id` the results are the server's own."""
    if not endings:
        return
    change.connection.execute(insert(results), [_result_row(row, result) for row, result in endings])
    change.connection.execute(
        update(sessions)
        .where(sessions.c.session_id == bindparam("this"))
        .values(stage=bindparam("final"), node_id=node_id, lease_expires=None),
        [{"this": row.session_id, "final": result.stage.value} for row, result in endings],
    )
    if node_id is None:
        drop_parts(change, [row.session_id for row, _ in endings])
    append(change, [_news(row, result, node_id) for row, result in endings])
    callbacks.owe(change, [result for _, result in endings])
    change.wakes.add("results")


def rows_after(connection: Connection, after: int, limit: int, only: Filter) -> list[tuple[int, str]]:
    """Cursor and JSON of each result. They are read elsewhere: this thread has heartbeats to write."""
    query = select(results.c.cursor, results.c.body).where(results.c.cursor > after)
    if only.task_id is not None:
        query = query.where(results.c.task_id == only.task_id)
    if only.group_id is not None:
        query = query.where(results.c.group_id == only.group_id)
    rows = connection.execute(query.order_by(results.c.cursor).limit(limit))
    return [(cursor, body) for cursor, body in rows]


def page_of(rows: Sequence[tuple[int, str]], after: int) -> ResultPage:
    """Takes time with many rows: not for the event loop."""
    entries = tuple(
        ResultEntry(cursor=cursor, result=SessionResult.model_validate_json(body)) for cursor, body in rows
    )
    return ResultPage(results=entries, cursor=entries[-1].cursor if entries else after)


def _result_row(row: SessionRow, result: SessionResult) -> dict[str, Any]:
    return {
        "session_id": row.session_id,
        "task_id": row.task_id,
        "group_id": row.group_id,
        "body": json.dumps(result.model_dump(mode="json")),
    }


def _news(row: SessionRow, result: SessionResult, node_id: str | None) -> News:
    data = {"stage": result.stage.value, "attempt": result.attempt, "reward": result.reward}
    return News("result", row.task_id, row.session_id, node_id, data)
