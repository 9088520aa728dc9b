"""A node's journal: its sessions, their stages, every model call and every result, durable once acknowledged.

The gateway appends a call here before the reply's last event leaves, so what a harness has acted on is always
on disk. A session that is run again keeps the calls of its earlier attempts, but only the newest is read.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel
from sqlalchemy import (
    ClauseElement,
    Connection,
    Text,
    and_,
    bindparam,
    func,
    insert,
    inspect,
    literal_column,
    select,
    union,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import IntegrityError

from polar.store.tables import METADATA, SCHEMA_VERSION, calls, results, sessions, stages
from polar.store.writer import JournalError, Writer
from polar.types import Call, Lease, SessionResult, Stage
from polar.types.codec import decode, encode

__all__ = ["Journal", "JournalError", "JournalledSession", "ResultRefused"]

M = TypeVar("M", bound=BaseModel)


class ResultRefused(JournalError):
    """A second result of an attempt, or the result of an attempt that is not the newest."""


class JournalledSession(msgspec.Struct, frozen=True):
    lease: Lease
    """Its session carries the stage it is in now."""
    calls: int
    sampled_tokens: int


class Journal:
    """SQLite behind one writer thread. One process writes; others may read at the same time."""

    def __init__(self, path: Path, writer: Writer) -> None:
        self.path = path
        self._writer = writer
        self._decoding = ThreadPoolExecutor(1, thread_name_prefix="polar-journal")
        """Reads what the writer has fetched, so that no commit waits for it."""

    @classmethod
    async def open(cls, path: Path, *, read_only: bool = False) -> Journal:
        if read_only and not path.is_file():
            raise JournalError(f"there is no journal at {path}")
        writer = Writer(path, read_only=read_only)
        await writer.open(lambda connection: _prepare(connection, path, read_only))
        return cls(path, writer)

    async def close(self) -> None:
        self._decoding.shutdown(wait=False)
        await self._writer.close()

    async def __aenter__(self) -> Journal:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def add_session(self, lease: Lease) -> None:
        """Takes a session in. One that is known already must come with a later attempt."""
        await self._writer.write(lambda connection: _add_session(connection, lease))

    async def append_call(self, call: Call) -> None:
        """Returns when the call is committed."""
        await self._writer.write(lambda connection: _append_call(connection, call))

    def mark_received(self, call_id: str) -> None:
        """Durable with the next write, or soon after: a crash before that loses a word about a call, not the call.
        Reading sees it at once."""
        self._writer.write_soon(lambda connection: _mark_received(connection, call_id))

    def record_stage(self, session_id: str, stage: Stage, at: float) -> asyncio.Future[None]:
        """Queues the change and returns at once; the order of calls is the order in the journal. Who needs to
        know that it is durable awaits the future."""
        return self._writer.write(lambda connection: _record_stage(connection, session_id, stage, at))

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        """`record_stage` in the shape of a `Watcher`."""
        self.record_stage(session_id, stage, at)

    async def save_result(self, result: SessionResult) -> None:
        """Takes a session's result exactly once per attempt, and only of the newest attempt."""
        await self._writer.write(lambda connection: _save_result(connection, result))

    async def calls(self, session_id: str) -> list[Call]:
        """In the order in which they were appended, so parents before children."""
        of_session = select(calls.c.body, calls.c.received).where(calls.c.session_id == session_id)
        query = of_session.join(sessions, _newest(calls)).order_by(calls.c.sequence)
        rows = await self._writer.read(lambda connection: list(connection.execute(query)))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._decoding, lambda: [_call(row.body, row.received) for row in rows])

    async def stages(self, session_id: str) -> list[tuple[Stage, float]]:
        of_session = select(stages.c.stage, stages.c.at).where(stages.c.session_id == session_id)
        query = of_session.join(sessions, _newest(stages)).order_by(stages.c.number)
        return await self._writer.read(
            lambda connection: [(Stage(stage), at) for stage, at in connection.execute(query)]
        )

    async def results(self) -> list[SessionResult]:
        """Of the newest attempts, in the order in which the sessions were added."""
        query = select(results.c.body).join(sessions, _newest(results)).order_by(sessions.c.number)
        return await self._writer.read(
            lambda connection: [_from_json(SessionResult, body) for (body,) in connection.execute(query)]
        )

    async def result(self, session_id: str) -> SessionResult | None:
        query = select(results.c.body).join(sessions, _newest(results)).where(results.c.session_id == session_id)
        body = await self._writer.read(lambda connection: connection.execute(query).scalar_one_or_none())
        return None if body is None else _from_json(SessionResult, body)

    async def session_ids(self) -> list[str]:
        query = select(sessions.c.session_id).order_by(sessions.c.number)
        return await self._writer.read(lambda connection: list(connection.execute(query).scalars()))

    async def strays(self) -> list[str]:
        """Sessions that calls, stages or results name and that are not listed: a row was taken out by hand."""
        named = union(*(select(table.c.session_id) for table in (calls, stages, results))).subquery()
        query = select(named.c.session_id).where(named.c.session_id.not_in(select(sessions.c.session_id)))
        return await self._writer.read(lambda connection: sorted(connection.execute(query).scalars()))

    async def sessions(self) -> list[JournalledSession]:
        """In the order in which they were added."""
        return await self._writer.read(_sessions)

    async def lease(self, session_id: str) -> Lease:
        """With the stage the session is in now."""
        query = select(sessions.c.lease, sessions.c.stage).where(sessions.c.session_id == session_id)
        row = await self._writer.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise JournalError(f"no session {session_id!r} in {self.path}")
        return _lease(row.lease, row.stage)


def _as_text(statement: ClauseElement) -> str:
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))


# The statements of every model call, compiled once: SQLAlchemy takes longer for it than SQLite to run them.
_OF_SESSION = bindparam("session_id", type_=Text())
_ATTEMPT = select(sessions.c.attempt).where(sessions.c.session_id == _OF_SESSION)
_LAST = func.coalesce(func.max(calls.c.sequence), literal_column("0"))
_NEXT = select(_LAST + literal_column("1")).where(
    calls.c.session_id == _OF_SESSION, calls.c.attempt == _ATTEMPT.scalar_subquery()
)
_APPEND_CALL = _as_text(
    insert(calls).values(
        {
            **{column.name: bindparam(column.name) for column in calls.c},
            "attempt": _ATTEMPT.scalar_subquery(),
            "sequence": _NEXT.scalar_subquery(),
        }
    )
)
_MARK_RECEIVED = _as_text(update(calls).where(calls.c.call_id == bindparam("of")).values(received=bindparam("as")))


def _prepare(connection: Connection, path: Path, read_only: bool) -> None:
    found = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    if found > SCHEMA_VERSION:
        raise JournalError(
            f"{path} was written by a newer Polar (journal version {found}, this one reads {SCHEMA_VERSION}); "
            "upgrade Polar to read it"
        )
    if found == 0 and read_only:
        raise JournalError(f"{path} is not a journal")
    if found == 0:
        if inspect(connection).get_table_names():
            raise JournalError(f"{path} is not a journal; Polar does not write into other databases")
        METADATA.create_all(connection)
        connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _newest(table: Any) -> Any:
    """Joins the rows of `table` that belong to the newest attempt of their session."""
    return and_(sessions.c.session_id == table.c.session_id, sessions.c.attempt == table.c.attempt)


def _attempt_of(connection: Connection, session_id: str) -> int:
    attempt = connection.execute(_ATTEMPT, {"session_id": session_id}).scalar_one_or_none()
    if attempt is None:
        raise JournalError(f"the journal knows no session {session_id!r}; add_session comes first")
    return attempt


def _add_session(connection: Connection, lease: Lease) -> None:
    session = lease.session
    row = {"attempt": session.attempt, "stage": session.stage.value, "lease": _to_json(lease)}
    this = sessions.c.session_id == session.session_id
    known = connection.execute(select(sessions.c.attempt).where(this)).scalar_one_or_none()
    if known is None:
        connection.execute(insert(sessions).values(session_id=session.session_id, **row))
    elif known < session.attempt:
        connection.execute(update(sessions).where(this).values(**row))
    else:
        raise JournalError(f"session {session.session_id}: attempt {known} is journalled already")


def _append_call(connection: Connection, call: Call) -> None:
    row = {
        "call_id": call.call_id,
        "session_id": call.session_id,
        "parent_id": call.parent_id,
        "kind": call.kind,
        "prompt_tokens": call.prompt_tokens,
        "sampled_tokens": len(call.completion_ids),
        "received": call.received,
        "body": encode(call),
    }
    try:
        connection.exec_driver_sql(_APPEND_CALL, row)
    except IntegrityError as error:
        _attempt_of(connection, call.session_id)  # refuses a session that is not known
        raise JournalError(f"call {call.call_id!r} is journalled already") from error


def _mark_received(connection: Connection, call_id: str) -> None:
    connection.exec_driver_sql(_MARK_RECEIVED, {"of": call_id, "as": True})


def _record_stage(connection: Connection, session_id: str, stage: Stage, at: float) -> None:
    attempt = _attempt_of(connection, session_id)
    connection.execute(insert(stages).values(session_id=session_id, attempt=attempt, stage=stage.value, at=at))
    _set_stage(connection, session_id, stage)


def _set_stage(connection: Connection, session_id: str, stage: Stage) -> None:
    connection.execute(update(sessions).where(sessions.c.session_id == session_id).values(stage=stage.value))


def _save_result(connection: Connection, result: SessionResult) -> None:
    newest = _attempt_of(connection, result.session_id)
    if result.attempt != newest:
        raise ResultRefused(
            f"session {result.session_id}: result of attempt {result.attempt}, but attempt {newest} is the newest"
        )
    key = {"session_id": result.session_id, "attempt": result.attempt}
    try:
        connection.execute(insert(results).values(**key, body=_to_json(result)))
    except IntegrityError as error:
        raise ResultRefused(
            f"session {result.session_id}: attempt {result.attempt} has its result already"
        ) from error
    _set_stage(connection, result.session_id, result.stage)


def _sessions(connection: Connection) -> list[JournalledSession]:
    count, sampled = func.count(calls.c.call_id), func.coalesce(func.sum(calls.c.sampled_tokens), 0)
    query = (
        select(sessions.c.lease, sessions.c.stage, count, sampled)
        .outerjoin(calls, _newest(calls))
        .group_by(sessions.c.number)
        .order_by(sessions.c.number)
    )
    return [
        JournalledSession(lease=_lease(lease, stage), calls=number, sampled_tokens=tokens)
        for lease, stage, number, tokens in connection.execute(query)
    ]


def _call(body: bytes, received: bool) -> Call:
    try:
        return msgspec.structs.replace(decode(body, Call), received=received)
    except msgspec.MsgspecError as error:
        raise JournalError(
            f"a call in the journal cannot be read: {error}; another version of Polar wrote it, or it is damaged"
        ) from error


def _lease(body: str, stage: str) -> Lease:
    lease = _from_json(Lease, body)
    return lease.model_copy(update={"session": lease.session.model_copy(update={"stage": Stage(stage)})})


def _to_json(value: BaseModel) -> str:
    """Through `json`, which keeps NaN and infinity: pydantic's own writer turns them into null, and a reward
    that is not a number would come back as no verdict."""
    return json.dumps(value.model_dump(mode="json"))


def _from_json(model: type[M], body: str) -> M:
    return model.model_validate(json.loads(body))
