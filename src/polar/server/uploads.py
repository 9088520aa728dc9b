"""What nodes upload: bytes from the network to a checked result, and back out as trajectories."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from pydantic import ValidationError
from sqlalchemy import Connection, select

from polar.server.refusals import Invalid, NotAcceptable, Unknown
from polar.server.rows import row_of
from polar.server.tables import uploads
from polar.types import SessionResult, SessionUpload, Trajectory
from polar.types.codec import decode, encode


@dataclass(frozen=True)
class Upload:
    result: SessionResult
    blob: bytes
    """As it came, to the byte."""


def checked(blob: bytes, session_id: str, attempt: int) -> Upload:
    """Takes time with a large blob: not for the event loop."""
    try:
        content = decode(blob, SessionUpload)
    except Exception as error:  # hostile bytes fail in as many ways as there are decoders
        raise Invalid(f"not a SessionUpload: {type(error).__name__}: {error}") from error
    try:
        result = SessionResult.model_validate_json(content.result)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Invalid(f"result: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if (result.session_id, result.attempt) != (session_id, attempt):
        raise Invalid(
            f"the result is of {result.session_id}, attempt {result.attempt}, not of what the path names"
        )
    if not result.stage.final:
        raise Invalid(f"result: stage: {result.stage} is not final")
    if strangers := {owner for owner in _owners(content) if owner != session_id}:
        raise Invalid(f"holds calls or traces of another session: {sorted(strangers)[0][:200]!r}")
    return Upload(_finite(result), blob)


def blob_of(connection: Connection, session_id: str) -> bytes:
    blob = connection.execute(
        select(uploads.c.blob).where(uploads.c.session_id == session_id)
    ).scalar_one_or_none()
    if blob is None:
        row_of(connection, session_id)  # an unknown session is another answer
        raise Unknown(f"session {session_id} has no upload: it has no result yet, or the server made its result")
    return blob


def trajectory_of(blob: bytes, session_id: str) -> Trajectory:
    trajectory = decode(blob, SessionUpload).trajectory
    if trajectory is None:
        raise Unknown(f"session {session_id} has no trajectory; its result says why")
    return trajectory


def trajectory_msgpack(blob: bytes, session_id: str) -> bytes:
    return encode(trajectory_of(blob, session_id))


def trajectory_json(blob: bytes, session_id: str) -> bytes:
    trajectory = trajectory_of(blob, session_id)
    try:
        return msgspec.json.encode(trajectory, enc_hook=_plain)
    except Exception as error:  # free-form metadata may hold what msgpack can say and JSON cannot
        raise NotAcceptable("this trajectory cannot be said in JSON; ask for application/vnd.msgpack") from error


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
    """JSON has no word for a number that is none: such metrics are left out, and the score says so."""
    changes: dict[str, Any] = {"stage_s": {k: v for k, v in result.stage_s.items() if math.isfinite(v)}}
    if result.score is not None:
        metrics = {name: value for name, value in result.score.metrics.items() if math.isfinite(value)}
        lost = sorted(result.score.metrics.keys() - metrics.keys())
        reasons = (*result.score.reasons, *(f"metric {name} was not a finite number" for name in lost))
        changes["score"] = result.score.model_copy(update={"metrics": metrics, "reasons": reasons})
    rate = result.statistics.merge_rate
    if rate is not None and not math.isfinite(rate):
        changes["statistics"] = result.statistics.model_copy(update={"merge_rate": None})
    return result.model_copy(update=changes)
