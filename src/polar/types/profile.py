"""What the gateway must know of a harness to read its calls; a value the harness returns."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from polar.types.call import CallKind


class KindRule(msgspec.Struct, frozen=True):
    """A header by which a harness says what a call is for."""

    header: str
    """In lower case."""
    kind: CallKind
    pattern: str = ""
    """Found anywhere in the header's value; empty: that the header is there is enough."""

    def applies(self, headers: Mapping[str, str]) -> bool:
        value = headers.get(self.header)
        return value is not None and re.search(self.pattern, value) is not None


class CallProfile(msgspec.Struct, frozen=True):
    kind_without_tools: CallKind = "agent"
    """What calls are that declare no tools: titles, summaries, or the agent at work."""
    kind_rules: tuple[KindRule, ...] = ()
    """The first that applies decides, before anything else does."""
    attribution_headers: tuple[str, ...] = ()
    """Headers, in lower case, that tell the harness's own threads of work apart. Two requests with the same body
    are one call and its retry only if these are the same too."""

    def kind_of(self, headers: Mapping[str, str], *, has_tools: bool) -> CallKind:
        for rule in self.kind_rules:
            if rule.applies(headers):
                return rule.kind
        return "agent" if has_tools else self.kind_without_tools

    def attribution(self, headers: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(headers.get(name, "") for name in self.attribution_headers)
