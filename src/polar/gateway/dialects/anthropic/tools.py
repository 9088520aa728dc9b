"""The tools of an Anthropic request that the model sees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from polar.gateway.dialects import raw_request as read
from polar.types import Tool

_WITHOUT_SCHEMA = ("bash_", "text_editor_", "computer_", "memory_", "browser_", "mcp_toolset")
"""Types of tools that a harness runs, but whose arguments only the provider's models know."""


class ToolChange(msgspec.Struct, frozen=True):
    """A tool that the history adds or removes."""

    name: str
    present: bool = True
    definition: Tool | None = None
    """None if the tool is declared elsewhere."""


def offered_tools(raw: Any, choice: Any, changes: Iterable[ToolChange]) -> tuple[Tool, ...]:
    """In the order of declaration. A deferred tool is offered once the history refers to it."""
    allowed = read.calls_allowed(None if choice is None else read.fields(choice).get("type") or "")
    declared: dict[str, Tool] = {}
    present: set[str] = set()
    for entry in read.items(raw, "tools"):
        tool = read_tool(entry, "tools[]")
        if tool is None:
            continue
        if tool.name in declared:
            raise read.bad("two of the tools have the same name", "tools")
        declared[tool.name] = tool
        if not read.fields(entry).get("defer_loading"):
            present.add(tool.name)
    for change in changes:
        if change.definition is not None:
            declared[change.name] = change.definition
        present = present | {change.name} if change.present else present - {change.name}
    return tuple(tool for name, tool in declared.items() if allowed and name in present)


def read_tool(raw: Any, where: str) -> Tool | None:
    """None for a tool that the provider runs itself."""
    entry = read.fields(raw)
    kind = read.text(entry.get("type"), f"{where}.type")
    if kind not in ("", "custom", "function") and entry.get("input_schema") is None:
        if kind.startswith(_WITHOUT_SCHEMA):
            raise read.bad(f"a {without_digits(kind)} tool needs an input_schema", f"{where}.type")
        return None
    return Tool(
        name=read.name(entry.get("name"), f"{where}.name"),
        description=read.text(entry.get("description"), f"{where}.description"),
        parameters=read.mapping(entry.get("input_schema"), f"{where}.input_schema"),
    )


def without_digits(kind: str) -> str:
    """A type without the date in it: harnesses take the digits in an error for a status."""
    letters = "".join(char if char.isascii() and char.isalpha() else " " for char in kind[:60])
    return "_".join(letters.split()) or "nameless"
