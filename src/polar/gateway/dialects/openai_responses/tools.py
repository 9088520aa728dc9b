"""The tools of a Responses request, and how the model's calls of them are named on the wire."""

from __future__ import annotations

from typing import Any

from polar.gateway.dialects import fields as reading
from polar.gateway.dialects.fields import bad, fields
from polar.types import Tool

TOOL_SEARCH = "tool_search"
"""The harness's own search for tools. It is its own namespace, so that no function of that name passes for it."""
REFUSED_TOOLS = ("local_shell", "shell", "apply_patch")
"""Run by the harness, but with no schema to show to a model: without them it would be left with no hands. What the
provider runs itself, such as a search of the web, is left out without a word."""


class Toolbox:
    """Every tool that a request shows to the model, wherever in the request it stands."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._deferred: set[str] = set()

    def add(self, raw: Any, where: str, *, found: bool = False) -> list[str]:
        """Takes in a list of tools and gives their names. `found`: the harness's search has brought them."""
        names: list[str] = []
        for index, item in enumerate(reading.items(raw, where)):
            for tool, deferred in _read(item, f"{where}[{index}]"):
                self._tools[tool.name] = tool
                self._deferred.discard(tool.name)
                if deferred and not found:
                    self._deferred.add(tool.name)
                names.append(tool.name)
        return names

    def shown(self) -> tuple[Tool, ...]:
        """Deferred tools wait for a search, where there is one that can find them."""
        search = self._tools.get(TOOL_SEARCH)
        hidden = self._deferred if search is not None and is_tool_search(search) else set[str]()
        return tuple(tool for name, tool in self._tools.items() if name not in hidden)


def flat_name(name: str, namespace: str) -> str:
    """What the model calls a tool that stands in a namespace."""
    return f"{namespace}__{name}" if namespace else name


def wire_names(called: str, tool: Tool | None) -> dict[str, str]:
    """The name a harness knows a called tool by, and its namespace apart. A name it never sent stays as it is."""
    if tool is None or not tool.namespace:
        return {"name": called}
    return {"name": called.removeprefix(flat_name("", tool.namespace)), "namespace": tool.namespace}


def is_tool_search(tool: Tool) -> bool:
    return tool.name == tool.namespace == TOOL_SEARCH


def _read(raw: Any, where: str) -> list[tuple[Tool, bool]]:
    """The tools that one entry stands for, and whether each is deferred."""
    entry = fields(raw)
    kind: Any = entry.get("type")
    if kind in ("function", "custom"):
        return [_callable(entry, where, namespace="", about="")]
    if kind == "namespace":
        return _namespace(entry, where)
    if kind == TOOL_SEARCH:
        return _tool_search(entry, where)
    if not isinstance(kind, str):
        raise bad("a tool must have a type", f"{where}.type")
    if kind in REFUSED_TOOLS:
        raise bad(f"tools of type {kind} are not supported; send a function", f"{where}.type")
    return []


def _callable(entry: dict[str, Any], where: str, namespace: str, about: str) -> tuple[Tool, bool]:
    name = flat_name(reading.name(entry.get("name"), f"{where}.name"), namespace)
    description = reading.text(entry.get("description"), f"{where}.description")
    deferred = entry.get("defer_loading") is True
    if entry.get("type") == "custom":
        texts = (about, description, _format(fields(entry.get("format"))))
        return reading.freeform_tool(name, _paragraphs(*texts), namespace), deferred
    tool = Tool(
        name=name,
        description=_paragraphs(about, description),
        parameters=fields(entry.get("parameters")),
        namespace=namespace,
    )
    return tool, deferred


def _format(value: dict[str, Any]) -> str:
    """Nothing holds the model to a grammar; it is told of it."""
    definition: Any = value.get("definition")
    if not isinstance(definition, str):
        return ""
    syntax: Any = value.get("syntax")
    return f"The input must follow this {syntax if isinstance(syntax, str) else 'formal'} grammar:\n{definition}"


def _namespace(entry: dict[str, Any], where: str) -> list[tuple[Tool, bool]]:
    """What is said of the whole group stands with its first tool."""
    namespace = reading.name(entry.get("name"), f"{where}.name")
    about = reading.text(entry.get("description"), f"{where}.description")
    members: list[tuple[Tool, bool]] = []
    for index, raw in enumerate(reading.items(entry.get("tools"), f"{where}.tools")):
        member, place = fields(raw), f"{where}.tools[{index}]"
        if member.get("type") not in ("function", "custom"):
            raise bad("a namespace holds functions and custom tools", f"{place}.type")
        members.append(_callable(member, place, namespace, "" if members else about))
    return members


def _tool_search(entry: dict[str, Any], where: str) -> list[tuple[Tool, bool]]:
    """A function like any other where the harness searches; the provider's own search is left out."""
    parameters = fields(entry.get("parameters"))
    if entry.get("execution") != "client" or not parameters:
        return []
    description = reading.text(entry.get("description"), f"{where}.description")
    return [(Tool(TOOL_SEARCH, description, parameters, namespace=TOOL_SEARCH), False)]


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)
