"""The tools of a Responses request, and their names in the reply."""

from __future__ import annotations

from typing import Any

from polar.gateway.dialects import raw_request as read
from polar.types import Tool

TOOL_SEARCH = "tool_search"
"""Name of the harness's search for tools. It is also its namespace, to tell it from a function of that name."""
REFUSED_TOOLS = ("local_shell", "shell", "apply_patch")
"""Tools that the harness runs and depends on, but that have no schema to show to a model. Tools that the provider
runs itself, such as a web search, are left out instead."""


class Toolbox:
    """All tools that a request shows to the model, from its `tools` and from its input items."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._deferred: set[str] = set()

    def add(self, raw: Any, where: str, *, found: bool = False) -> list[str]:
        """Adds a list of tools and returns their names. `found` shows deferred ones: a search has found them."""
        names: list[str] = []
        for index, item in enumerate(read.items(raw, where)):
            for tool, deferred in _read(read.fields(item), f"{where}[{index}]"):
                self._tools[tool.name] = tool
                self._deferred.discard(tool.name)
                if deferred and not found:
                    self._deferred.add(tool.name)
                names.append(tool.name)
        return names

    def shown(self) -> tuple[Tool, ...]:
        """Without deferred tools, if there is a search that can find them."""
        search = self._tools.get(TOOL_SEARCH)
        hidden = self._deferred if search is not None and is_tool_search(search) else set[str]()
        return tuple(tool for name, tool in self._tools.items() if name not in hidden)


def flat_name(name: str, namespace: str) -> str:
    """The name by which the model calls a tool in a namespace."""
    return f"{namespace}__{name}" if namespace else name


def call_names(called: str, tool: Tool | None) -> dict[str, str]:
    """Name and namespace of a called tool as the harness sent them. An unknown name stays as it is."""
    if tool is None or not tool.namespace:
        return {"name": called}
    return {"name": called.removeprefix(flat_name("", tool.namespace)), "namespace": tool.namespace}


def is_tool_search(tool: Tool) -> bool:
    return tool.name == tool.namespace == TOOL_SEARCH


def _read(entry: dict[str, Any], where: str) -> list[tuple[Tool, bool]]:
    """The tools of one entry, and whether each is deferred."""
    kind: Any = entry.get("type")
    if kind in ("function", "custom"):
        return [_callable(entry, where, namespace="", about="")]
    if kind == "namespace":
        return _namespace(entry, where)
    if kind == TOOL_SEARCH:
        return _tool_search(entry, where)
    if not isinstance(kind, str):
        raise read.bad("a tool must have a type", f"{where}.type")
    if kind in REFUSED_TOOLS:
        raise read.bad(f"tools of type {kind} are not supported; send a function", f"{where}.type")
    return []


def _callable(entry: dict[str, Any], where: str, namespace: str, about: str) -> tuple[Tool, bool]:
    name = flat_name(read.name(entry.get("name"), f"{where}.name"), namespace)
    description = read.text(entry.get("description"), f"{where}.description")
    deferred = entry.get("defer_loading") is True
    if entry.get("type") == "custom":
        description = _paragraphs(about, description, _grammar(read.fields(entry.get("format"))))
        return read.freeform_tool(name, description, namespace), deferred
    parameters = read.fields(entry.get("parameters"))
    return Tool(name, _paragraphs(about, description), parameters, namespace=namespace), deferred


def _grammar(value: dict[str, Any]) -> str:
    """A grammar is not enforced, so the description states it."""
    definition: Any = value.get("definition")
    if not isinstance(definition, str):
        return ""
    syntax: Any = value.get("syntax")
    return f"The input must follow this {syntax if isinstance(syntax, str) else 'formal'} grammar:\n{definition}"


def _namespace(entry: dict[str, Any], where: str) -> list[tuple[Tool, bool]]:
    """The description of the namespace is put in front of that of its first tool."""
    namespace = read.name(entry.get("name"), f"{where}.name")
    about = read.text(entry.get("description"), f"{where}.description")
    members: list[tuple[Tool, bool]] = []
    for index, raw in enumerate(read.items(entry.get("tools"), f"{where}.tools")):
        member, place = read.fields(raw), f"{where}.tools[{index}]"
        if member.get("type") not in ("function", "custom"):
            raise read.bad("a namespace may contain only functions and custom tools", f"{place}.type")
        members.append(_callable(member, place, namespace, "" if members else about))
    return members


def _tool_search(entry: dict[str, Any], where: str) -> list[tuple[Tool, bool]]:
    """A function, if the harness runs the search. The provider's own search is left out."""
    parameters = read.fields(entry.get("parameters"))
    if entry.get("execution") != "client" or not parameters:
        return []
    description = read.text(entry.get("description"), f"{where}.description")
    return [(Tool(TOOL_SEARCH, description, parameters, namespace=TOOL_SEARCH), False)]


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)
