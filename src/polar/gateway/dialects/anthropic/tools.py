"""Anthropic tools: which of those a request declares the model is shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from polar.gateway.dialects import fields as read
from polar.types import Tool

_WITHOUT_SCHEMA = ("bash_", "text_editor_", "computer_", "memory_", "browser_", "mcp_toolset")
"""Types of tools that a harness runs but whose arguments only the provider's models know."""


class ToolChange(msgspec.Struct, frozen=True):
    """A tool that a conversation brings in, or takes away, as it goes on."""

    name: str
    present: bool = True
    definition: Tool | None = None
    """None: the tool is declared elsewhere."""


def offered_tools(raw: Any, choice: Any, changes: Iterable[ToolChange]) -> tuple[Tool, ...]:
    """In the order they are declared. A deferred tool is there from the moment the conversation refers to it."""
    hidden = _hides(choice)
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
    return () if hidden else tuple(tool for name, tool in declared.items() if name in present)


def read_tool(raw: Any, where: str) -> Tool | None:
    """None for a tool that the provider runs itself: nobody here would."""
    entry = read.fields(raw)
    kind = read.text(entry.get("type"), f"{where}.type")
    schema = entry.get("input_schema")
    if kind not in ("", "custom", "function") and schema is None:
        if kind.startswith(_WITHOUT_SCHEMA):
            raise read.bad(f"a {plain_word(kind)} tool needs an input_schema", f"{where}.type")
        return None
    if schema is not None and not isinstance(schema, dict):
        raise read.bad(f"{where}.input_schema must be an object", f"{where}.input_schema")
    return Tool(
        name=read.name(entry.get("name"), f"{where}.name"),
        description=read.text(entry.get("description"), f"{where}.description"),
        parameters=read.fields(schema),
    )


def plain_word(kind: str) -> str:
    """A type as an error may spell it: without the date in it, whose digits harnesses take for a status."""
    letters = "".join(char if char.isascii() and char.isalpha() else " " for char in kind[:60])
    return "_".join(letters.split()) or "nameless"


def _hides(choice: Any) -> bool:
    kind = "auto" if choice is None else read.fields(choice).get("type")
    if kind not in ("auto", "none"):
        reason = "a forced call is not sampled from the plain model"
        raise read.bad(f"tool_choice must be auto or none: {reason}", "tool_choice")
    return kind == "none"
