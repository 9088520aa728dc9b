"""Which weights sampled which tokens of a reply, as servers tell it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polar.types import PolicySpan

UNNAMED_VERSION = "default"
"""What a server says that was never told a version: it is none."""


class VersionSpan(msgspec.Struct, frozen=True):
    """Which weights sampled the tokens from `start` to before `end` of a reply."""

    version: str
    start: int = 0
    end: int = 0


def named_version(version: str | None) -> str:
    return "" if version is None or version == UNNAMED_VERSION else version


def spans_of(told: Sequence[VersionSpan] | None) -> tuple[PolicySpan, ...]:
    """All of a reply by its versions; an update between two tokens of one version leaves no trace."""
    lengths = [(named_version(span.version), span.end - span.start) for span in told or ()]
    return consecutive(lengths)


def consecutive(lengths: Sequence[tuple[str, int]]) -> tuple[PolicySpan, ...]:
    """Spans for versions that sampled so many tokens each, one after another."""
    spans: list[PolicySpan] = []
    for version, length in lengths:
        last = spans[-1] if spans else PolicySpan("", 0, 0)
        if spans and last.version == version:
            spans[-1] = PolicySpan(version, last.start, last.length + length)
        elif length > 0:
            spans.append(PolicySpan(version, last.start + last.length, length))
    return tuple(spans)


def version_at(spans: Sequence[PolicySpan], position: int) -> str:
    """The version of one token, or of the first where nothing is told of that one."""
    for span in spans:
        if span.start <= position < span.start + span.length:
            return span.version
    return spans[0].version if spans else ""


def if_several(spans: tuple[PolicySpan, ...]) -> tuple[PolicySpan, ...]:
    """A single version is said by `policy_version`."""
    return spans if len(spans) > 1 else ()
