"""A node's journal: its sessions, their stages, every model call and every result, durable once acknowledged.

The gateway appends a call here before the reply's last event leaves, so what a harness has acted on is always
on disk. A session that is run again keeps the calls of its earlier attempts, but only the newest is read.
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

from polar.store import statements
from polar.store.database import JournalDatabase, JournalError
from polar.store.writer import Writer
from polar.types import Call, Lease, SessionResult, Stage
from polar.types.codec import decode, encode

__all__ = ["Journal", "JournalError", "JournalledSession", "ResultRefused"]

DECODED_AT_ONCE_BYTES = 256 * 1024
"""Calls up to this size together are decoded on the event loop: that takes less than to wake a thread twice."""

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

    def __init__(self, path: Path, writer: Writer[sqlite3.Connection]) -> None:
        self.path = path
        self._writer = writer
        self._decoding = ThreadPoolExecutor(1, thread_name_prefix="polar-journal")
        """Reads what the writer has fetched, so that no commit waits for it."""

    @classmethod
    async def open(cls, path: Path, *, read_only: bool = False) -> Journal:
        if read_only and not path.is_file():
            raise JournalError(f"there is no journal at {path}")
        writer = Writer(JournalDatabase(path, read_only=read_only), read_only=read_only)
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
        """Takes sessions in, all of them or none. One that is known already must come with a later attempt."""
        await self._writer.write(lambda connection: [_add_session(connection, lease) for lease in leases])

    async def add_session(self, lease: Lease) -> None:
        await self.add_sessions([lease])

    async def append_call(self, call: Call) -> None:
        """Returns when the call is committed."""
        await self._writer.write(lambda connection: _append_call(connection, call))

    def mark_received(self, call_id: str) -> None:
        """Durable with the next write, or soon after: a crash before that loses a word about a call, not the call.
        Reading sees it at once."""
        self._writer.write_soon(lambda connection: _mark_received(connection, call_id))

    async def record_stage(self, session_id: str, stage: Stage, at: float) -> None:
        """Returns when the change is committed."""
        await self._writer.write(lambda connection: _record_stage(connection, session_id, stage, at))

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        """As a `Watcher`. Durable with the next write, or soon after; a crash before that loses the last change of
        a session that is lost with it. The order of changes is the order in the journal."""
        self._writer.write_soon(lambda connection: _record_stage(connection, session_id, stage, at))

    async def save_result(self, result: SessionResult) -> None:
        """Takes a session's result exactly once per attempt, and only of the newest attempt."""
        await self._writer.write(lambda connection: _save_result(connection, result))

    async def calls(self, session_id: str) -> list[Call]:
        """In the order in which they were appended, so parents before children."""
        rows = await self._rows(statements.CALLS, session_id)
        if sum(len(body) for body, _ in rows) <= DECODED_AT_ONCE_BYTES:
            return _calls(rows)
        return await asyncio.get_running_loop().run_in_executor(self._decoding, _calls, rows)

    async def stages(self, session_id: str) -> list[tuple[Stage, float]]:
        return [(Stage(stage), at) for stage, at in await self._rows(statements.STAGES, session_id)]

    async def results(self) -> list[SessionResult]:
        """Of the newest attempts, in the order in which the sessions were added."""
        return await self._writer.read(
            lambda connection: [
                _from_json(SessionResult, body) for (body,) in connection.execute(statements.RESULTS)
            ]
        )

    async def result(self, session_id: str) -> SessionResult | None:
        rows = await self._rows(statements.RESULT, session_id)
        return _from_json(SessionResult, rows[0][0]) if rows else None

    async def session_ids(self) -> list[str]:
        return [session_id for (session_id,) in await self._rows(statements.SESSION_IDS)]

    async def strays(self) -> list[str]:
        """Sessions that calls, stages or results name and that are not listed: a row was taken out by hand."""
        return [session_id for (session_id,) in await self._rows(statements.STRAYS)]

    async def sessions(self) -> list[JournalledSession]:
        """In the order in which they were added."""
        return await self._writer.read(_sessions)

    async def lease(self, session_id: str) -> Lease:
        """With the stage the session is in now."""
        rows = await self._rows(statements.LEASE, session_id)
        if not rows:
            raise JournalError(f"no session {session_id!r} in {self.path}")
        return _lease(*rows[0])

    async def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        return await self._writer.read(lambda connection: connection.execute(query, values).fetchall())


def _prepare(connection: sqlite3.Connection, path: Path, read_only: bool) -> None:
    ((found,),) = connection.execute("PRAGMA user_version")
    if found > statements.SCHEMA_VERSION:
        raise JournalError(
            f"{path} was written by a newer Polar (journal version {found}, this one reads "
            f"{statements.SCHEMA_VERSION}); upgrade Polar to read it"
        )
    if found == 0 and read_only:
        raise JournalError(f"{path} is not a journal")
    if found == 0:
        if connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise JournalError(f"{path} is not a journal; Polar does not write into other databases")
        for table in statements.TABLES:
            connection.execute(table)
        connection.execute(f"PRAGMA user_version = {statements.SCHEMA_VERSION}")


def _attempt_of(connection: sqlite3.Connection, session_id: str) -> int:
    found = connection.execute(statements.ATTEMPT, (session_id,)).fetchone()
    if found is None:
        raise JournalError(f"the journal knows no session {session_id!r}; add_session comes first")
    return found[0]


def _add_session(connection: sqlite3.Connection, lease: Lease) -> None:
    session = lease.session
    row = {
        "session_id": session.session_id,
        "attempt": session.attempt,
        "stage": session.stage.value,
        "lease": _to_json(lease),
    }
    if connection.execute(statements.ADD_SESSION, row).rowcount == 0:
        known = _attempt_of(connection, session.session_id)
        raise JournalError(f"session {session.session_id}: attempt {known} is journalled already")


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
        added = connection.execute(statements.APPEND_CALL, row).rowcount
    except sqlite3.IntegrityError as error:
        raise JournalError(f"call {call.call_id!r} is journalled already") from error
    if not added:
        _attempt_of(connection, call.session_id)  # refuses a session that is not known


def _mark_received(connection: sqlite3.Connection, call_id: str) -> None:
    connection.execute(statements.MARK_RECEIVED, (call_id,))


def _record_stage(connection: sqlite3.Connection, session_id: str, stage: Stage, at: float) -> None:
    row = {"session_id": session_id, "stage": stage.value, "at": at}
    if connection.execute(statements.RECORD_STAGE, row).rowcount == 0:
        _attempt_of(connection, session_id)  # refuses a session that is not known
    connection.execute(statements.SET_STAGE, row)


def _save_result(connection: sqlite3.Connection, result: SessionResult) -> None:
    newest = _attempt_of(connection, result.session_id)
    if result.attempt != newest:
        raise ResultRefused(
            f"session {result.session_id}: result of attempt {result.attempt}, but attempt {newest} is the newest"
        )
    row = {
        "session_id": result.session_id,
        "attempt": result.attempt,
        "stage": result.stage.value,
        "body": _to_json(result),
    }
    try:
        connection.execute(statements.SAVE_RESULT, row)
    except sqlite3.IntegrityError as error:
        raise ResultRefused(
            f"session {result.session_id}: attempt {result.attempt} has its result already"
        ) from error
    connection.execute(statements.END_SESSION, row)


def _sessions(connection: sqlite3.Connection) -> list[JournalledSession]:
    return [
        JournalledSession(lease=_lease(lease, stage), calls=number, sampled_tokens=tokens)
        for lease, stage, number, tokens in connection.execute(statements.SESSIONS)
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
    """Through `json`, which keeps NaN and infinity: pydantic's own writer turns them into null, and a reward
    that is not a number would come back as no verdict."""
    return json.dumps(value.model_dump(mode="json"))


def _from_json(model: type[M], body: str) -> M:
    return model.model_validate(json.loads(body))
