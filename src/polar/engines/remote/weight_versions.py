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
    """A reply by its versions, each where the server says; none where it names none. An update between two tokens
    of one version leaves no trace."""
    spans: list[PolicySpan] = []
    for span in told or ():
        version, last = named_version(span.version), spans[-1] if spans else None
        if span.end <= span.start:
            continue
        if last is not None and last.version == version and last.start + last.length == span.start:
            spans[-1] = PolicySpan(version, last.start, span.end - last.start)
        else:
            spans.append(PolicySpan(version, span.start, span.end - span.start))
    return tuple(spans) if any(span.version for span in spans) else ()


def version_at(spans: Sequence[PolicySpan], position: int) -> str:
    """The version of one token, where one is told."""
    for span in spans:
        if span.start <= position < span.start + span.length:
            return span.version
    return ""
