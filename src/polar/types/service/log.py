"""Lines of the service's log, as a node sends them to the server and the server shows them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, FiniteFloat

from polar.types.base import Strict

LogLevelName = Literal["info", "warning", "error"]
MAX_MESSAGE = 2000


class LogLine(Strict):
    at: FiniteFloat
    """Unix seconds."""
    level: LogLevelName
    source: str = Field(default="", max_length=200)
    """The server, or a node's name."""
    message: str = Field(max_length=MAX_MESSAGE)
    session_id: str | None = Field(default=None, max_length=200)
