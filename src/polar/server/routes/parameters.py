"""Parameters and error answers that several routes share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query

from polar.server.errors import ErrorBody
from polar.types import ID_PATTERN
from polar.types.base import MAX_CURSOR

PathId = Annotated[str, Path(pattern=ID_PATTERN)]
QueryId = Annotated[str | None, Query(pattern=ID_PATTERN)]
Cursor = Annotated[int, Query(ge=0, le=MAX_CURSOR)]
Limit = Annotated[int, Query(ge=1, le=10_000)]
WaitSeconds = Annotated[float, Query(ge=0, le=60)]

UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": ErrorBody}}
CONFLICT: dict[int | str, dict[str, Any]] = {409: {"model": ErrorBody}}
OTHER_VERSION: dict[int | str, dict[str, Any]] = {426: {"model": ErrorBody}}
