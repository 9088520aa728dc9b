"""Uploads: what a node sends of a session (result, trajectory, calls), checked, stored, and read again.

A blob is written and read in parts, each in its own transaction, so that no heartbeat waits for a large one. The
last part is written together with the session's result; until then the blob is incomplete.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from pydantic import ValidationError
from sqlalchemy import Connection, delete, insert, select

from polar.server.errors import Invalid, NotAcceptable, NotFound
from polar.server.records.sessions import row_of
from polar.server.records.tables import sessions, upload_parts, uploads
from polar.server.state import Change, State
from polar.types import SessionResult, SessionUpload, Trajectory
from polar.types.codec import decode, encode

PART_BYTES = 2**20


@dataclass(frozen=True)
class Upload:
    result: SessionResult
    blob: bytes
    """As received."""

    @property
    def parts(self) -> int:
        """Number of parts before the last, which is stored with the result."""
        return max(0, len(self.blob) - 1) // PART_BYTES

    def part(self, number: int) -> bytes:
        return self.blob[number * PART_BYTES : (number + 1) * PART_BYTES]


def checked(blob: bytes, session_id: str, attempt: int) -> Upload:
    """Slow with a large blob: call it in a thread."""
    try:
        content = decode(blob, SessionUpload)
    except Exception as error:  # hostile bytes may raise anything
        raise Invalid(f"not a SessionUpload: {type(error).__name__}: {error}") from error
    try:
        result = SessionResult.model_validate_json(content.result)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Invalid(f"result: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if (result.session_id, result.attempt) != (session_id, attempt):
        raise Invalid(f"the path does not match the result: {result.session_id}, attempt {result.attempt}")
    if not result.stage.final:
        raise Invalid(f"result: stage: {result.stage} is not final")
    if strangers := {owner for owner in _owners(content) if owner != session_id}:
        raise Invalid(f"holds calls or traces of another session: {sorted(strangers)[0][:200]!r}")
    return Upload(_finite(result), blob)


def keep_part(change: Change, upload: Upload, number: int) -> None:
    """Overwrites: the node may send the same upload again."""
    key = {"session_id": upload.result.session_id, "attempt": upload.result.attempt, "number": number}
    change.connection.execute(delete(upload_parts).filter_by(**key))
    change.connection.execute(insert(upload_parts).values(**key, part=upload.part(number)))


def keep_last(change: Change, upload: Upload) -> None:
    """Completes the blob, and deletes parts of other attempts or of a longer blob."""
    session_id, attempt = upload.result.session_id, upload.result.attempt
    of_session = delete(upload_parts).where(upload_parts.c.session_id == session_id)
    change.connection.execute(
        of_session.where((upload_parts.c.attempt != attempt) | (upload_parts.c.number >= upload.parts))
    )
    change.connection.execute(insert(uploads).values(session_id=session_id, blob=upload.part(upload.parts)))


def drop_parts(change: Change, session_ids: Iterable[str]) -> None:
    """For sessions that end without an upload."""
    for session_id in session_ids:
        change.connection.execute(delete(upload_parts).where(upload_parts.c.session_id == session_id))


async def read_blob(state: State, session_id: str) -> bytes:
    """In several transactions: a complete blob never changes."""
    last = await state.read(_last_part, session_id)
    parts: list[bytes] = []
    while (part := await state.read(_part, session_id, len(parts))) is not None:
        parts.append(part)
    return b"".join([*parts, last]) if parts else last


def _last_part(connection: Connection, session_id: str) -> bytes:
    blob = connection.execute(
        select(uploads.c.blob).where(uploads.c.session_id == session_id)
    ).scalar_one_or_none()
    if blob is None:
        row_of(connection, session_id)  # raises if the session is unknown
        raise NotFound(f"session {session_id} has no upload: it has not ended, or the server ended it")
    return blob


def _part(connection: Connection, session_id: str, number: int) -> bytes | None:
    of_last_attempt = (sessions.c.session_id == session_id) & (upload_parts.c.attempt == sessions.c.attempt)
    query = select(upload_parts.c.part).join(sessions, sessions.c.session_id == upload_parts.c.session_id)
    return connection.execute(query.where(of_last_attempt, upload_parts.c.number == number)).scalar_one_or_none()


def trajectory_of(blob: bytes, session_id: str) -> Trajectory:
    trajectory = decode(blob, SessionUpload).trajectory
    if trajectory is None:
        raise NotFound(f"session {session_id} has no trajectory; see its result")
    return trajectory


def trajectory_msgpack(blob: bytes, session_id: str) -> bytes:
    return encode(trajectory_of(blob, session_id))


def trajectory_json(blob: bytes, session_id: str) -> bytes:
    trajectory = trajectory_of(blob, session_id)
    try:
        return msgspec.json.encode(trajectory, enc_hook=_plain)
    except Exception as error:  # free-form metadata may hold values that JSON has no form for
        raise NotAcceptable("this trajectory has no JSON form; ask for application/vnd.msgpack") from error


def _plain(value: Any) -> Any:
    if isinstance(value, array):
        return cast("array[Any]", value).tolist()
    raise NotImplementedError(type(value).__name__)


def _owners(content: SessionUpload) -> set[str]:
    owners = {call.session_id for call in content.calls}
    if content.trajectory is not None:
        owners |= {content.trajectory.session_id, *(trace.session_id for trace in content.trajectory.traces)}
    return owners


def _finite(result: SessionResult) -> SessionResult:
    """Drops NaN and infinity, which JSON cannot hold. Polar's own nodes send none."""
    changes: dict[str, Any] = {"stage_s": {k: v for k, v in result.stage_s.items() if math.isfinite(v)}}
    if result.score is not None:
        changes["score"] = result.score.finite()
    rate = result.statistics.merge_rate
    if rate is not None and not math.isfinite(rate):
        changes["statistics"] = result.statistics.model_copy(update={"merge_rate": None})
    return result.model_copy(update=changes)
