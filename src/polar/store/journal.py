"""A node's journal: its sessions, their stages, every model call and every result, durable once acknowledged.

The gateway appends a call before it sends the reply's last event, so every reply a harness acted on is on disk.
A session that runs again keeps the calls of its earlier attempts, but only the newest attempt is read.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel

from polar.store import journal_sql as sql
from polar.store.database import StoreError, connect_sqlite
from polar.store.writer import DatabaseWriter
from polar.types import Call, Lease, SessionResult, Stage
from polar.types.codec import decode, encode

DECODED_AT_ONCE_BYTES = 256 * 1024
"""Calls of up to this total size are decoded on the event loop: faster than a switch to a thread."""

M = TypeVar("M", bound=BaseModel)


class JournalError(StoreError):
    """A node's journal failed."""


class ResultRefused(JournalError):
    """A second result of an attempt, or the result of an old attempt."""


class JournalledSession(msgspec.Struct, frozen=True):
    lease: Lease
    """With the session's current stage."""
    calls: int
    sampled_tokens: int


class JournalDatabase:
    """The journal's SQLite file. Each model call writes to it, and SQLAlchemy would take longer for a statement
    than SQLite."""

    error: type[StoreError] = JournalError
    failure: type[Exception] = sqlite3.Error
    unable: type[Exception] = sqlite3.OperationalError

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.name = f"the journal {path}"
        self._path = path
        self._read_only = read_only

    def connect(self) -> sqlite3.Connection:
        return connect_sqlite(self._path, read_only=self._read_only)

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def rollback(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def close(self, connection: sqlite3.Connection) -> None:
        connection.close()


class Journal:
    """SQLite behind one writer thread. One process writes; others may read at the same time."""

    def __init__(self, path: Path, writer: DatabaseWriter[sqlite3.Connection]) -> None:
        self.path = path
        self._writer = writer
        self._decoding = ThreadPoolExecutor(1, thread_name_prefix="polar-journal")
        """Decodes what the writer has fetched, so that no commit waits for it."""
        self.calls_added = 0
        """Since it was opened, as `tokens_added`; for the display of progress."""
        self.tokens_added = 0

    @classmethod
    async def open(cls, path: Path, *, read_only: bool = False) -> Journal:
        if read_only and not path.is_file():
            raise JournalError(f"there is no journal at {path}")
        writer = DatabaseWriter(JournalDatabase(path, read_only=read_only), read_only=read_only)
        await writer.open(lambda connection: _prepare(connection, path, read_only))
        return cls(path, writer)

    async def close(self) -> None:
        self._decoding.shutdown(wait=False)
        await self._writer.close()

    async def __aenter__(self) -> Journal:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def add_sessions(self, leases: Sequence[Lease]) -> None:
        """All of them or none. A session already in the journal must come with a later attempt."""
        await self._writer.write(lambda connection: [_add_session(connection, lease) for lease in leases])

    async def add_session(self, lease: Lease) -> None:
        await self.add_sessions([lease])

    async def append_call(self, call: Call) -> None:
        """Returns when the call is committed."""
        await self._writer.write(lambda connection: _append_call(connection, call))
        self.calls_added += 1
        self.tokens_added += len(call.completion_ids) or (call.usage and call.usage.completion_tokens) or 0

    def mark_received(self, call_id: str) -> None:
        """Durable with the next write, or soon after; reads see it at once."""
        self._writer.defer(lambda connection: connection.execute(sql.MARK_RECEIVED, (call_id,)))

    async def record_stage(self, session_id: str, stage: Stage, at: float) -> None:
        """Returns when the change is committed."""
        await self._writer.write(lambda connection: _record_stage(connection, session_id, stage, at))

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        """As a `Watcher`. In order; durable with the next write, or soon after. A crash loses the last change of a
        session that it ends anyway."""
        self._writer.defer(lambda connection: _record_stage(connection, session_id, stage, at))

    async def save_result(self, result: SessionResult) -> None:
        """Once per attempt, and only for the newest attempt."""
        await self._writer.write(lambda connection: _save_result(connection, result))

    async def calls(self, session_id: str) -> list[Call]:
        """In the order in which they were appended: parents before children."""
        rows = await self._rows(sql.CALLS, session_id)
        if sum(len(body) for body, _ in rows) <= DECODED_AT_ONCE_BYTES:
            return _calls(rows)
        return await asyncio.get_running_loop().run_in_executor(self._decoding, _calls, rows)

    async def stages(self, session_id: str) -> list[tuple[Stage, float]]:
        return [(Stage(stage), at) for stage, at in await self._rows(sql.STAGES, session_id)]

    async def results(self) -> list[SessionResult]:
        """Of the newest attempts, in the order in which the sessions were added."""
        return await self._writer.read(
            lambda connection: [_from_json(SessionResult, body) for (body,) in connection.execute(sql.RESULTS)]
        )

    async def result(self, session_id: str) -> SessionResult | None:
        rows = await self._rows(sql.RESULT, session_id)
        return _from_json(SessionResult, rows[0][0]) if rows else None

    async def session_ids(self) -> list[str]:
        return [session_id for (session_id,) in await self._rows(sql.SESSION_IDS)]

    async def strays(self) -> list[str]:
        """Ids in calls, stages or results that are not among the sessions: somebody deleted a row."""
        return [session_id for (session_id,) in await self._rows(sql.STRAYS)]

    async def sessions(self) -> list[JournalledSession]:
        """In the order in which they were added."""
        return await self._writer.read(_sessions)

    async def lease(self, session_id: str) -> Lease:
        """With the session's current stage."""
        rows = await self._rows(sql.LEASE, session_id)
        if not rows:
            raise JournalError(f"no session {session_id!r} in {self.path}")
        return _lease(*rows[0])

    async def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        return await self._writer.read(lambda connection: connection.execute(query, values).fetchall())


def _prepare(connection: sqlite3.Connection, path: Path, read_only: bool) -> None:
    ((found,),) = connection.execute("PRAGMA user_version")
    if found > sql.SCHEMA_VERSION:
        raise JournalError(
            f"{path} was written by a newer Polar (journal version {found}, this one reads "
            f"{sql.SCHEMA_VERSION}); upgrade Polar to read it"
        )
    if found == 0 and read_only:
        raise JournalError(f"{path} is not a journal")
    if found == 0:
        if connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise JournalError(f"{path} is not a journal; Polar does not write into other databases")
        for table in sql.TABLES:
            connection.execute(table)
        connection.execute(f"PRAGMA user_version = {sql.SCHEMA_VERSION}")


def _attempt_of(connection: sqlite3.Connection, session_id: str) -> int:
    found = connection.execute(sql.ATTEMPT, (session_id,)).fetchone()
    if found is None:
        raise JournalError(f"no session {session_id!r} in the journal; call add_session first")
    return found[0]


def _add_session(connection: sqlite3.Connection, lease: Lease) -> None:
    session = lease.session
    row = {
        "session_id": session.session_id,
        "attempt": session.attempt,
        "stage": session.stage.value,
        "lease": _to_json(lease),
    }
    if connection.execute(sql.ADD_SESSION, row).rowcount == 0:
        known = _attempt_of(connection, session.session_id)
        raise JournalError(f"session {session.session_id}: attempt {known} is already in the journal")


def _append_call(connection: sqlite3.Connection, call: Call) -> None:
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
        added = connection.execute(sql.APPEND_CALL, row).rowcount
    except sqlite3.IntegrityError as error:
        raise JournalError(f"call {call.call_id!r} is already in the journal") from error
    if not added:
        _attempt_of(connection, call.session_id)  # raises if the session is unknown


def _record_stage(connection: sqlite3.Connection, session_id: str, stage: Stage, at: float) -> None:
    row = {"session_id": session_id, "stage": stage.value, "at": at}
    if connection.execute(sql.RECORD_STAGE, row).rowcount == 0:
        _attempt_of(connection, session_id)  # raises if the session is unknown
    connection.execute(sql.SET_STAGE, row)


def _save_result(connection: sqlite3.Connection, result: SessionResult) -> None:
    newest = _attempt_of(connection, result.session_id)
    if result.attempt != newest:
        raise ResultRefused(
            f"session {result.session_id}: attempt {result.attempt} is not the newest, which is {newest}"
        )
    row = {
        "session_id": result.session_id,
        "attempt": result.attempt,
        "stage": result.stage.value,
        "body": _to_json(result),
    }
    try:
        connection.execute(sql.SAVE_RESULT, row)
    except sqlite3.IntegrityError as error:
        raise ResultRefused(
            f"session {result.session_id}: attempt {result.attempt} already has its result"
        ) from error
    connection.execute(sql.END_SESSION, row)


def _sessions(connection: sqlite3.Connection) -> list[JournalledSession]:
    return [
        JournalledSession(lease=_lease(lease, stage), calls=number, sampled_tokens=tokens)
        for lease, stage, number, tokens in connection.execute(sql.SESSIONS)
    ]


def _calls(rows: Sequence[tuple[bytes, bool]]) -> list[Call]:
    return [_call(body, bool(received)) for body, received in rows]


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
    """With `json`, which keeps NaN and infinity: pydantic's writer turns them into null, and a NaN reward would be
    read as no verdict."""
    return json.dumps(value.model_dump(mode="json"))


def _from_json(model: type[M], body: str) -> M:
    return model.model_validate(json.loads(body))
