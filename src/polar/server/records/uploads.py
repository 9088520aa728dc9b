"""Uploads: what a node sends of a session (result, trajectory, calls), checked, stored, and read again.

A blob is stored as it came, compressed. In a blob store it is written before the session's result, under a key
that the result's transaction then names. In the database it is written in parts, each in its own transaction, so
that no heartbeat waits for a large one; the last part is written together with the result.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from pydantic import ValidationError
from sqlalchemy import Connection, delete, insert, select, update

from polar.server.errors import Gone, Invalid, NotAcceptable, NotFound, TooLargeUpload
from polar.server.records.sessions import row_of
from polar.server.records.tables import sessions, storage, upload_parts, uploads
from polar.server.state import Change, State
from polar.store.blobs.base import NAMED_WITHIN_S, BlobMissing, BlobStoreError, key_of
from polar.types import SessionResult, SessionUpload, Trajectory
from polar.types.codec import encode
from polar.types.packed import PACKED, TooLarge, compressed, is_compressed, packed, unpack_upload
from polar.types.shared_ids import SharedIds

PART_BYTES = 2**20
MAX_WHOLE_TOKENS = 2**27
"""Of all traces of a session together, if a client asks for each of them whole."""


@dataclass(frozen=True)
class Upload:
    result: SessionResult
    blob: bytes
    """As it is stored."""
    key: str | None = None
    """In the blob store; None: the blob goes into the database."""
    put_at: float = 0.0
    """When its writing began."""

    @property
    def parts(self) -> int:
        """Number of parts before the last, which is stored with the result."""
        return 0 if self.key else max(0, len(self.blob) - 1) // PART_BYTES

    def part(self, number: int) -> bytes:
        return b"" if self.key else self.blob[number * PART_BYTES : (number + 1) * PART_BYTES]


def checked(blob: bytes, session_id: str, attempt: int, limit_bytes: int | None = None) -> Upload:
    """`limit_bytes`: of the decompressed blob. Slow with a large blob: call it in a thread."""
    try:
        content = unpack_upload(blob, limit_bytes)
    except TooLarge as error:
        raise TooLargeUpload(f"the upload is {error}; make it smaller or raise the server's limit") from error
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
    return Upload(_finite(result), blob if is_compressed(blob) else compressed(blob))


async def put_blob(state: State, upload: Upload) -> Upload:
    """Into the blob store, if there is one; the upload then has the key."""
    if state.blobs is None:
        return upload
    result, now = upload.result, state.clock()
    key = await asyncio.to_thread(key_of, state.identity, result.session_id, result.attempt, upload.blob, now)
    await state.blobs.put(key, upload.blob)
    return Upload(result, upload.blob, key, now)


def may_name(change: Change, put_at: float) -> bool:
    """Else the blob may have been deleted as a leftover."""
    return change.now - put_at <= NAMED_WITHIN_S


def keep_part(change: Change, upload: Upload, number: int) -> None:
    """Overwrites: the node may send the same upload again."""
    key = {"session_id": upload.result.session_id, "attempt": upload.result.attempt, "number": number}
    change.connection.execute(delete(upload_parts).filter_by(**key))
    change.connection.execute(insert(upload_parts).values(**key, part=upload.part(number)))


def keep_last(change: Change, upload: Upload) -> None:
    """Completes the blob, and deletes parts of other attempts or of a longer blob."""
    if upload.key and not may_name(change, upload.put_at):
        raise BlobStoreError(f"blob {upload.key} waited too long for its result; send it again")
    session_id, attempt, size = upload.result.session_id, upload.result.attempt, len(upload.blob)
    of_session = delete(upload_parts).where(upload_parts.c.session_id == session_id)
    change.connection.execute(
        of_session.where((upload_parts.c.attempt != attempt) | (upload_parts.c.number >= upload.parts))
    )
    row = {"session_id": session_id, "blob": upload.part(upload.parts), "blob_key": upload.key}
    change.connection.execute(insert(uploads).values(**row, size_bytes=size, at=change.now))
    count_blobs(change, 1, size)


def count_blobs(change: Change, blobs: int, size_bytes: int) -> None:
    """With each change of what is stored, because counting all takes too long."""
    grown = {"blobs": storage.c.blobs + blobs, "blob_bytes": storage.c.blob_bytes + size_bytes}
    change.connection.execute(update(storage).values(**grown))


def drop_parts(change: Change, session_ids: Iterable[str]) -> None:
    """For sessions that end without an upload."""
    for session_id in session_ids:
        change.connection.execute(delete(upload_parts).where(upload_parts.c.session_id == session_id))


async def read_blob(state: State, session_id: str) -> bytes:
    """As it is stored. In several steps: a complete blob never changes, but the server may move it to its store
    meanwhile; then it is read there."""
    for _ in range(2):
        key, last = await state.read(_place, session_id)
        if key is not None:
            return await _stored(state, session_id, key)
        parts: list[bytes] = []
        while (part := await state.read(_part, session_id, len(parts))) is not None:
            parts.append(part)
        if (await state.read(_place, session_id))[0] is None:
            return b"".join([*parts, last]) if parts else last
    raise BlobStoreError(f"the upload of session {session_id} is being moved; try again")


async def _stored(state: State, session_id: str, key: str) -> bytes:
    if state.blobs is None:
        raise BlobStoreError(f"blob {key} is in the store that `server.blobs` named before; name it again")
    try:
        return await state.blobs.get(key)
    except BlobMissing:
        await state.read(_place, session_id)  # raises if retention has removed it meanwhile
        raise


def _place(connection: Connection, session_id: str) -> tuple[str | None, bytes]:
    """Its key in the blob store, or its last part."""
    columns = (uploads.c.blob_key, uploads.c.blob, uploads.c.size_bytes)
    row = connection.execute(select(*columns).where(uploads.c.session_id == session_id)).one_or_none()
    if row is None:
        row_of(connection, session_id)  # raises if the session is unknown
        raise NotFound(f"session {session_id} has no upload: it has not ended, or the server ended it")
    if not row.size_bytes:
        raise Gone(f"the server's retention has removed the upload of session {session_id}; its result stays")
    return row.blob_key, row.blob


def _part(connection: Connection, session_id: str, number: int) -> bytes | None:
    of_last_attempt = (sessions.c.session_id == session_id) & (upload_parts.c.attempt == sessions.c.attempt)
    query = select(upload_parts.c.part).join(sessions, sessions.c.session_id == upload_parts.c.session_id)
    return connection.execute(query.where(of_last_attempt, upload_parts.c.number == number)).scalar_one_or_none()


def upload_packed(blob: bytes) -> bytes:
    """Without decoding it. Blobs of older Polars are stored uncompressed."""
    return blob if is_compressed(blob) else compressed(blob)


def upload_msgpack(blob: bytes) -> bytes:
    """With every trace whole."""
    content = unpack_upload(blob)
    if content.trajectory is not None:
        _check_whole(content.trajectory)
    return encode(content)


def _check_whole(trajectory: Trajectory) -> None:
    """Traces share prefixes: whole they may take memory in the square of what came."""
    tokens = sum(len(trace.prompt_ids) + len(trace.response_ids) for trace in trajectory.traces)
    if tokens > MAX_WHOLE_TOKENS:
        raise NotAcceptable(
            f"whole, these traces have {tokens} tokens; ask for {PACKED}, in which they share prefixes"
        )


def trajectory_of(blob: bytes, session_id: str) -> Trajectory:
    trajectory = unpack_upload(blob).trajectory
    if trajectory is None:
        raise NotFound(f"session {session_id} has no trajectory; see its result")
    return trajectory


def trajectory_packed(blob: bytes, session_id: str) -> bytes:
    return compressed(packed(trajectory_of(blob, session_id)))


def trajectory_msgpack(blob: bytes, session_id: str) -> bytes:
    trajectory = trajectory_of(blob, session_id)
    _check_whole(trajectory)
    return encode(trajectory)


def trajectory_json(blob: bytes, session_id: str) -> bytes:
    trajectory = trajectory_of(blob, session_id)
    _check_whole(trajectory)
    try:
        return msgspec.json.encode(trajectory, enc_hook=_plain)
    except Exception as error:  # free-form metadata may hold values that JSON has no form for
        raise NotAcceptable("this trajectory has no JSON form; ask for application/vnd.msgpack") from error


def _plain(value: Any) -> Any:
    if isinstance(value, array | SharedIds):
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
