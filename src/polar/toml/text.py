"""Writes values as TOML. Python reads TOML and does not write it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast


def toml_table(table: Mapping[str, Any]) -> str:
    """A line for each key; tables in it are inline. Raises ValueError if TOML cannot hold a value."""
    return "".join(f"{toml_key(name)} = {toml_value(value)}\n" for name, value in table.items())


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(value: Any) -> str:
    match value:
        case None:
            raise ValueError("TOML has no null")
        case Mapping():
            entries = cast("Mapping[str, Any]", value).items()
            return "{ " + ", ".join(f"{toml_key(name)} = {toml_value(each)}" for name, each in entries) + " }"
        case list() | tuple():
            return "[" + ", ".join(toml_value(each) for each in cast("list[Any]", value)) + "]"
        case _:  # as in JSON, except for one character that TOML wants escaped
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_text(text: str) -> str:
    """A string over several lines, for people to read."""
    lines = (toml_value(line)[1:-1] for line in text.split("\n"))
    return '"""\n' + "\n".join(lines) + '"""'
