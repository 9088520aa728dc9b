"""What the gateway must know of a harness to read its calls; a value the harness returns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from polar.types.call import CallKind
from polar.types.chat import Message, Tool


class HeaderRule(msgspec.Struct, frozen=True):
    """A header by which a harness says what a call is for."""

    header: str
    """In lower case."""
    kind: CallKind
    pattern: str = ""
    """Found anywhere in the header's value; empty: that the header is there is enough."""

    def applies(self, headers: Mapping[str, str], messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
        value = headers.get(self.header)
        return value is not None and re.search(self.pattern, value) is not None


class ToolRule(msgspec.Struct, frozen=True):
    """A tool that a harness offers only to some of its conversations."""

    tool: str
    kind: CallKind
    offered: bool = True
    """False: the sign is that there are tools and this one is not among them."""

    def applies(self, headers: Mapping[str, str], messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
        return bool(tools) and any(tool.name == self.tool for tool in tools) == self.offered


class LastWordRule(msgspec.Struct, frozen=True):
    """Words of the harness's own with which the user seems to ask for a call."""

    pattern: str
    """Found in the last message, which must be the user's."""
    kind: CallKind

    def applies(self, headers: Mapping[str, str], messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
        last = messages[-1] if messages else None
        return last is not None and last.role == "user" and re.search(self.pattern, last.content) is not None


KindRule = HeaderRule | ToolRule | LastWordRule


class VolatileLine(msgspec.Struct, frozen=True):
    """A line that a harness writes anew with each request and that may then be another, such as a date."""

    role: Literal["system", "user"]
    """Whose messages it stands in."""
    pattern: str
    """Matches the whole line."""


class ArgumentRewrite(msgspec.Struct, frozen=True):
    """What a harness changes in a text argument of a call before it sends the call back."""

    tool: str
    argument: str
    pattern: str
    """What is replaced, wherever it is found. Replacing twice must be the same as replacing once: it is done to
    both sides, to what the model wrote and to what the harness made of it."""
    replacement: str = ""


class Matching(msgspec.Struct, frozen=True):
    """What a harness does to its history that does not make it another history. The default is to do nothing."""

    volatile_lines: tuple[VolatileLine, ...] = ()
    adds_defaults: bool = False
    """An argument with the value that the tool's schema gives as its `default` counts as absent."""
    coerces_arguments: bool = False
    """A text counts as the number, truth value, list or object it spells, where the schema wants one of these."""
    argument_rewrites: tuple[ArgumentRewrite, ...] = ()
    lowers_tool_names: bool = False
    """A tool's name in capitals counts as the tool, where only the name in small letters is offered."""


class CallProfile(msgspec.Struct, frozen=True):
    kind_without_tools: CallKind = "agent"
    """What calls are that declare no tools: titles, summaries, or the agent at work."""
    kind_rules: tuple[KindRule, ...] = ()
    """The first that applies decides, before anything else does."""
    attribution_headers: tuple[str, ...] = ()
    """Headers, in lower case, that tell the harness's own threads of work apart. Two requests with the same body
    are one call and its retry only if these are the same too."""
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
