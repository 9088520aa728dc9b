"""Sessions that a person watches while they run: what their nodes have uploaded of them so far.

A request marks its session as watched for a while; the next heartbeat reply tells the node, which then uploads
calls and log tails whenever they changed. Only the newest upload is kept, and only as long as the session runs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from polar.server.errors import Conflict, Invalid
from polar.server.overview.tables import watched, watched_parts
from polar.server.records.sessions import SessionRow, row_of
from polar.server.records.tables import among, sessions
from polar.server.state import Change, State
from polar.types import SessionUpload, Stage
from polar.types.codec import decode

WATCHED_S = 30.0
"""After the last request."""
KEPT_S = 180.0
"""An upload that is no longer watched stays so long."""
PART_BYTES = 2**20


@dataclass(frozen=True)
class LiveBlob:
    version: int
    parts: int


def watch(change: Change, session_id: str, wait_s: float = 0.0) -> bool:
    """For as long as the request waits, and `WATCHED_S` more. False: the session has ended."""
    row = row_of(change.connection, session_id)
    if Stage(row.stage).final:
        return False
    until = change.now + wait_s + WATCHED_S
    mine = watched.c.session_id == session_id
    if not change.connection.execute(update(watched).where(mine).values(until=until)).rowcount:
        change.connection.execute(insert(watched).values(session_id=session_id, until=until))
    return True


def watched_among(change: Change, session_ids: Collection[str]) -> tuple[str, ...]:
    """For a heartbeat reply. Few sessions are watched at a time."""
    found = change.connection.execute(select(watched.c.session_id).where(watched.c.until > change.now)).scalars()
    return tuple(sorted(set(found) & set(session_ids)))


def checked(blob: bytes, session_id: str) -> bytes:
    """Slow with a large blob: call it in a thread."""
    try:
        content = decode(blob, SessionUpload)
    except Exception as error:  # hostile bytes may raise anything
        raise Invalid(f"not a SessionUpload: {type(error).__name__}: {error}") from error
    if content.trajectory is not None or content.result:
        raise Invalid("a session that runs has neither result nor trajectory")
    if any(call.session_id != session_id for call in content.calls):
        raise Invalid("holds calls of another session")
    return blob


async def take(state: State, node_id: str, session_id: str, attempt: int, blob: bytes) -> None:
    """Part by part, so that no heartbeat waits for a large one."""
    version = await state.change(_next_version, node_id, session_id, attempt)
    parts = [blob[start : start + PART_BYTES] for start in range(0, len(blob), PART_BYTES)]
    for number, part in enumerate(parts):
        key = {"session_id": session_id, "version": version, "number": number}
        await state.change(_keep_part, key, part)
    await state.change(_publish, session_id, attempt, LiveBlob(version, len(parts)))


def _next_version(change: Change, node_id: str, session_id: str, attempt: int) -> int:
    row = row_of(change.connection, session_id)
    if row.lease_expires is None or (row.node_id, row.attempt) != (node_id, attempt):
        raise Conflict(f"session {session_id}: attempt {attempt} is not leased to this node")
    found = change.connection.execute(select(watched.c.version).where(watched.c.session_id == session_id))
    version = found.scalar_one_or_none()
    if version is None:
        raise Conflict(f"session {session_id} is not watched")
    return version + 1


def _keep_part(change: Change, key: dict[str, Any], part: bytes) -> None:
    change.connection.execute(delete(watched_parts).filter_by(**key))
    change.connection.execute(insert(watched_parts).values(**key, part=part))


def _publish(change: Change, session_id: str, attempt: int, blob: LiveBlob) -> None:
    """Unless the session ended meanwhile; then its parts go too."""
    mine = watched.c.session_id == session_id
    values = {"attempt": attempt, "version": blob.version, "parts": blob.parts}
    kept = change.connection.execute(update(watched).where(mine).values(**values)).rowcount
    others = delete(watched_parts).where(watched_parts.c.session_id == session_id)
    change.connection.execute(others.where(watched_parts.c.version != blob.version) if kept else others)
    change.wakes.add("live")


def newest(connection: Connection, session_id: str, after: int) -> LiveBlob | None:
    """Of the session's attempt that runs now."""
    query = (
        select(watched.c.version, watched.c.parts)
        .join(sessions, sessions.c.session_id == watched.c.session_id)
        .where(watched.c.session_id == session_id, watched.c.attempt == sessions.c.attempt)
        .where(watched.c.version > after)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else LiveBlob(row.version, row.parts)


def read(connection: Connection, session_id: str, blob: LiveBlob) -> bytes | None:
    """None: it was replaced or deleted meanwhile."""
    query = (
        select(watched_parts.c.part)
        .where(watched_parts.c.session_id == session_id, watched_parts.c.version == blob.version)
        .order_by(watched_parts.c.number)
    )
    parts = list(connection.execute(query).scalars())
    return b"".join(parts) if len(parts) == blob.parts else None


def forget(change: Change, rows: Collection[SessionRow]) -> None:
    """When they have ended, or begin again. Wakes those who watch."""
    _delete(change, [row.session_id for row in rows])
    change.wakes.add("live")


def sweep(change: Change) -> None:
    old = select(watched.c.session_id).where(watched.c.until < change.now - KEPT_S)
    if ids := list(change.connection.execute(old).scalars()):
        _delete(change, ids)


def _delete(change: Change, session_ids: Collection[str]) -> None:
    for table in (watched, watched_parts):
        change.connection.execute(delete(table).where(among(change.connection, table.c.session_id, session_ids)))
