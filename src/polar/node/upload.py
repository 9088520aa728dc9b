"""A session's end as the blob that goes to the server."""

from __future__ import annotations

import json
from collections.abc import Sequence

from polar.types import Call, Failure, SessionResult, SessionUpload, Stage, Trajectory, TrajectoryStatistics
from polar.types.codec import encode


def upload_of(result: SessionResult, trajectory: Trajectory | None, calls: Sequence[Call]) -> bytes:
    return encode(SessionUpload(result=_json(result), trajectory=trajectory, calls=tuple(calls)))


def bare_upload(result: SessionResult, why: str) -> bytes:
    """Instead of one the server cannot take: the session gets its one result, which says what became of it."""
    failure = Failure(where="upload", type="Unacceptable", message=why[:4000])
    changes = {
        "stage": Stage.FAILED,
        "score": None,
        "failure": failure,
        "statistics": TrajectoryStatistics(),
        "traces": None,
        "certificate": None,
        "seal": "",
    }
    return upload_of(result.model_copy(update=changes), None, ())


def _json(result: SessionResult) -> bytes:
    """Through `json`, which keeps metrics that are no numbers; pydantic's own writer turns them into null."""
    return json.dumps(result.model_dump(mode="json")).encode()
