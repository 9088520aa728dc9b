"""The outcome of checking a trajectory against its calls: a short certificate, and the findings behind it."""

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
"""Those before `labels` come from calls and trajectory alone; the others from `polar audit`, which also reads
files and asks engines. docs/audit.md explains each."""


class Finding(Strict):
    """One violation."""

    where: str
    """The call, trace or file, with the position if there is one."""
    what: Violation
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: expected {self.expected}, found {self.found}"


class Certificate(Strict):
    """Computed from a session's calls and trajectory alone, so anyone who has both can compute it again.

    It does not cover rewards: it is made before there are any, and they change no token.
    """

    builder: str
    builder_version: str = ""
    calls: int
    traces: int
    sampled_tokens: int
    trainable_tokens: int
    dropped_tokens: int
    inexact_traces: int = 0
    """Traces marked as not having the context that the engine had."""
    calls_digest: str
    """Chained over the calls: digest of the prompt, and the sampled ids."""
    traces_digest: str
    """Chained over traces and dropped entries: every id, mask bit, logprob and span."""
    records_digest: str = ""
    """Chained over everything else that is stored: kinds, messages, sampling and times of calls; breaks,
    statistics and metadata. Empty: made by an older Polar."""
    findings: int = 0
    reasons: dict[str, int] = {}
    """Number of findings by violation."""
    exact: bool
    """No finding, and every trace's context is what the engine had."""
