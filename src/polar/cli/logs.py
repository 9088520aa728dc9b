"""Log output of commands that serve, on stderr: a line for each record, or a JSON object with `--log-json`.

An unexpected error is logged once, with its traceback and, if it concerns a session, the session's id.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LevelOption = Annotated[LogLevel, typer.Option("--log-level", help="Lowest level to log.")]
LogJsonOption = Annotated[bool, typer.Option("--log-json", help="Write each log record as one JSON object.")]


@dataclass(frozen=True)
class LogOptions:
    level: LogLevel = LogLevel.INFO
    json: bool = False

    def arguments(self) -> list[str]:
        """Command-line options that give a child process the same."""
        return ["--log-level", self.level.value, *(["--log-json"] if self.json else [])]

    def apply(self) -> None:
        """To this process. Libraries log warnings and errors only."""
        handler = logging.StreamHandler()
        plain = logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S")
        handler.setFormatter(JsonFormatter() if self.json else plain)
        own = logging.getLevelNamesMapping()[self.level.name]
        logging.basicConfig(handlers=[handler], level=max(own, logging.WARNING))
        logging.getLogger("polar").setLevel(own)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        value: dict[str, Any] = {
            "at": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (session_id := getattr(record, "session_id", None)) is not None:
            value["session_id"] = session_id
        if record.exc_info:
            value["traceback"] = self.formatException(record.exc_info)
        return json.dumps(value)
