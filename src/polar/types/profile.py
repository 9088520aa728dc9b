"""What the gateway must know about a harness to interpret its calls. A harness returns a `CallProfile`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from polar.types.call import CallKind
from polar.types.chat import Message, Tool


class HeaderRule(msgspec.Struct, frozen=True):
    """A header with which a harness marks the purpose of a call."""

    header: str
    """In lower case."""
    kind: CallKind
    pattern: str = ""
    """Searched in the header's value; empty: the presence of the header is enough."""

    def applies(self, headers: Mapping[str, str], messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
        value = headers.get(self.header)
        return value is not None and re.search(self.pattern, value) is not None


class ToolRule(msgspec.Struct, frozen=True):
    """A tool that a harness offers only in some of its conversations."""

    tool: str
    kind: CallKind
    offered: bool = True
    """False: applies if there are tools and this one is not among them."""

    def applies(self, headers: Mapping[str, str], messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
        return bool(tools) and any(tool.name == self.tool for tool in tools) == self.offered


class LastWordRule(msgspec.Struct, frozen=True):
    """Text of the harness itself in the last user message of a call."""

    pattern: str
    """Searched in the last message, which must be the user's."""
    kind: CallKind

    def applies(self, headers: Mapping[str, str], messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
        last = messages[-1] if messages else None
        return last is not None and last.role == "user" and re.search(self.pattern, last.content) is not None


KindRule = HeaderRule | ToolRule | LastWordRule


class VolatileLine(msgspec.Struct, frozen=True):
    """A line that may change from request to request, such as a date."""

    role: Literal["system", "user"]
    """Role of the messages that contain it."""
    pattern: str
    """Matches the whole line."""


class ArgumentRewrite(msgspec.Struct, frozen=True):
    """A change that a harness makes in a text argument of a tool call before it sends the call back."""

    tool: str
    argument: str
    pattern: str
    """All matches are replaced, in what the model wrote and in what the harness sent. Replacing twice must give
    the same as replacing once."""
    replacement: str = ""


class Matching(msgspec.Struct, frozen=True):
    """Changes of a history that still count as the same history. By default none."""

    volatile_lines: tuple[VolatileLine, ...] = ()
    adds_defaults: bool = False
    """An argument with the value that the tool's schema gives as its `default` counts as absent."""
    coerces_arguments: bool = False
    """A text counts as the number, boolean, list or object it spells, if the schema asks for one of these."""
    argument_rewrites: tuple[ArgumentRewrite, ...] = ()
    lowers_tool_names: bool = False
    """A tool name in upper case counts as the tool, if only the lower-case name is offered."""


class CallProfile(msgspec.Struct, frozen=True):
    kind_without_tools: CallKind = "agent"
    """Kind of calls that declare no tools: titles, summaries, or the agent itself."""
    kind_rules: tuple[KindRule, ...] = ()
    """The first that applies decides the kind."""
    attribution_headers: tuple[str, ...] = ()
    """Headers, in lower case, that distinguish the harness's threads of work. Two requests with the same body are
    a call and its retry only if these are equal too."""
    matching: Matching = Matching()

    def kind_of(
        self, headers: Mapping[str, str], messages: Sequence[Message] = (), tools: Sequence[Tool] = ()
    ) -> CallKind:
        for rule in self.kind_rules:
            if rule.applies(headers, messages, tools):
                return rule.kind
        return "agent" if tools else self.kind_without_tools

    def attribution(self, headers: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(headers.get(name, "") for name in self.attribution_headers)
