"""What a check of a trajectory against its calls says: a short certificate, and the findings behind it."""

from __future__ import annotations

from typing import Literal

from polar.types.base import Strict

Violation = Literal[
    "calls_unsound",
    "prompt_unproven",
    "session",
    "span",
    "tokens",
    "context",
    "mask",
    "logprob",
    "not_trainable",
    "coverage",
    "kind",
    "reward",
    "branch",
    "labels",
    "statistics",
    "session_missing",
    "result_missing",
    "result_differs",
    "certificate_missing",
    "traces_missing",
    "traces_unreadable",
    "journal_unreadable",
    "certificate_differs",
    "no_score",
    "logprob_gap",
    "mean_gap",
]
"""Those before `labels` are found in calls and trajectory alone; the others by `polar audit`, which looks
at files and engines. Each is explained in docs/audit.md."""


class Finding(Strict):
    """One thing that is not as it must be."""

    where: str
    """The call, trace or file, with the position where there is one."""
    what: Violation
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: expected {self.expected}, found {self.found}"


class Certificate(Strict):
    """Made from a session's calls and its trajectory alone, so anyone who has both can make it again.

    It says nothing of rewards' values: it is made before there are any, and rewarding changes no token.
    """

    builder: str
    builder_version: str = ""
    calls: int
    traces: int
    sampled_tokens: int
    trainable_tokens: int
    dropped_tokens: int
    inexact_traces: int = 0
    """Traces that say of themselves that their context is not what the engine had."""
    calls_digest: str
    """Chained over the calls: the prompt each one sent, by its digest, and the ids it got."""
    traces_digest: str
    """Chained over traces and dropped entries: every id, mask bit, logprob and span."""
    records_digest: str = ""
    """Chained over all that is stored of calls and trajectory and is in neither of the two above: kinds, messages,
    sampling and times of calls; breaks, statistics and metadata. Empty: made by a Polar that had none."""
    findings: int = 0
    reasons: dict[str, int] = {}
    """Findings by what they are."""
    exact: bool
    """No finding, and every trace's context is what the engine had."""
