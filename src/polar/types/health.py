"""Whether a session's data can be relied on: a verdict beside the reward, not about the agent's work.

docs/health.md explains each problem.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from pydantic import Field

from polar.types.base import Strict

HealthVerdict = Literal["ok", "suspect", "broken"]
HealthProblem = Literal[
    "capture_inexact",
    "capture_missing",
    "not_captured",
    "not_in_own_log",
    "reply_shared",
    "own_log_unreadable",
    "calls_refused",
    "tools_failing",
    "tool_loop",
    "truncated",
    "tool_errors",
    "budget_end",
]
HEALTH_PROBLEMS: tuple[HealthProblem, ...] = get_args(HealthProblem)
BREAKING: frozenset[HealthProblem] = frozenset({"capture_inexact", "capture_missing", "not_captured"})
"""With one of these, what we captured is not what the harness and the model exchanged."""
NOTES: frozenset[HealthProblem] = frozenset({"tool_errors", "budget_end"})
"""These are normal; a session with nothing else is ok."""


class ReplyCount(Strict):
    """The tokens of one reply, as a harness counts them."""

    prompt_tokens: int = Field(ge=0)
    """With those that came from a cache."""
    completion_tokens: int = Field(ge=0)
    """With reasoning."""


class HarnessUsage(Strict):
    """The replies that a harness counts in its own log."""

    replies: tuple[ReplyCount, ...] = ()


class HealthFinding(Strict):
    what: HealthProblem
    count: int = Field(default=1, ge=1)
    detail: str = Field(default="", max_length=1000)


class Health(Strict):
    verdict: HealthVerdict = "ok"
    findings: tuple[HealthFinding, ...] = ()
    calls: int = 0
    """Replies that the harness received from us."""
    own_calls: int | None = None
    """Replies that its own log counts; None: it keeps none, or none was kept."""

    def has(self, *problems: HealthProblem) -> bool:
        return any(finding.what in problems for finding in self.findings)


def verdict_of(findings: Iterable[HealthFinding]) -> HealthVerdict:
    """By the worst of them."""
    found = {finding.what for finding in findings}
    return "broken" if found & BREAKING else "suspect" if found - NOTES else "ok"
