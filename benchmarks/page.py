"""How a benchmark's table gets into docs/performance.md: between the markers of its name; and into JSON."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def origin(command: str) -> str:
    """Where a table comes from: the command that makes it again, and the machine."""
    machine = f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    return f"Measured by `{command}` on {machine}."


def goal(what: str, met: bool, measured: str) -> str:
    """One line: a goal, and what this run has of it."""
    return f"- Goal {'met' if met else '**missed**'} in this run: {what} ({measured})."


def write_json(path: Path | None, command: str, results: Any) -> None:
    """What a table shows, unrounded, for other programs."""
    if path is not None:
        data = {"command": command, "machine": platform.uname()._asdict(), "results": results}
        path.write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))


def write_section(name: str, text: str, page: Path = PAGE) -> None:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    whole = page.read_text()
    if begin not in whole or end not in whole:
        raise SystemExit(f"{page} has no section {name!r}: put {begin} and {end} where the table belongs")
    head, tail = whole.split(begin)[0], whole.split(end)[1]
    page.write_text(f"{head}{begin}\n{text}\n{end}{tail}")
