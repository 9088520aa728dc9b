"""Traces, and the account of every sampled token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from polar.types.base import Logprobs, LossMask, Strict, TokenIds
from polar.types.call import CallKind, PolicySpan

if TYPE_CHECKING:
    import numpy


class TraceRow(TypedDict):
    """A trace as plain values, for a trainer or a data set."""

    session_id: str
    task_id: str
    group: str
    """Sessions whose rewards are compared have the same: the baseline of a reward is the mean over its group."""
    sample: int
    """Which of the task's samples, from 0."""
    attempt: int
    kind: CallKind
    """`agent`, or what else the harness used the model for: `subagent`, `compaction`, `auxiliary`."""
    reward: float | None
    """Of the session, unless the evaluator judged each trace. All traces of a session have it, so count a session
    once for a baseline. None: there is no verdict, and the row is not for training."""
    prompt_ids: list[int]
    """The tokens before the first reply. Never trained on."""
    completion_ids: list[int]
    """All tokens after the prompt: the replies, and between them what the harness added, such as tool results."""
    mask: list[int]
    """One per completion id. 1: sampled by the policy, train on it. 0: context only."""
    logprobs: list[float]
    """One per completion id: the log probability the policy gave the token when it was sampled (the old policy's,
    for the importance ratio); 0.0 where the mask is 0."""
    policy_versions: list[str]
    """Of the weights that sampled the trace, oldest first. More than one: they were updated meanwhile."""
    context_exact: bool
    """The tokens are the context the engine had. False only with a builder or engine that cannot promise it."""
    failure: str
    """`where: type` of the session's failure; empty: it did not fail."""


class Span(msgspec.Struct, frozen=True):
    """The sampled tokens of one call in a trace's response: all of them, or only the first ones if a later prompt
    has others in place of the rest."""

    call_id: str
    start: int
    length: int
    policy_version: str = ""
    """The version when the call began."""
    policy_spans: tuple[PolicySpan, ...] = ()
    """Relative to this span; empty: all of it is of `policy_version`."""

    @property
    def versions(self) -> tuple[PolicySpan, ...]:
        """The policy version of every token, without gaps."""
        return self.policy_spans or (PolicySpan(self.policy_version, 0, self.length),)

    def shortened(self, length: int) -> Span:
        """The first `length` tokens."""
        within = tuple(
            PolicySpan(span.version, span.start, min(span.length, length - span.start))
            for span in self.policy_spans
            if span.start < length
        )
        return Span(self.call_id, self.start, length, self.policy_version, within)


class TraceError(ValueError):
    """The values of a trace contradict each other."""


class Trace(msgspec.Struct, frozen=True):
    """One trainable token sequence. Raises `TraceError` for unequal lengths or a non-finite logprob."""

    session_id: str
    prompt_ids: TokenIds
    """An array, or `SharedIds`, which reads the same: branches share the tokens they begin with."""
    response_ids: TokenIds
    loss_mask: LossMask
    """One per response id. 1: sampled, may be trained on; else 0."""
    logprobs: Logprobs
    """One per response id: the engine's where the mask is 1; 0.0 elsewhere."""
    spans: tuple[Span, ...]
    kind: CallKind = "agent"
    context_exact: bool = True
    reward: float | None = None
    metadata: dict[str, Any] = {}
    task_id: str = ""
    """This and the next four are set at the end of the session (`builders/labels.py`), not by builders."""
    group_id: str = ""
    """Sessions whose rewards are compared have the same."""
    sample: int = 0
    """Which of the task's samples."""
    attempt: int = 0
    failure: str = ""
    """`where: type` of the session's failure; empty: it did not fail."""

    def __post_init__(self) -> None:
        size = len(self.response_ids)
        if len(self.loss_mask) != size or len(self.logprobs) != size:
            raise TraceError(
                f"{size} response ids, but {len(self.loss_mask)} mask bits and {len(self.logprobs)} logprobs"
            )
        if not self.prompt_ids:
            raise TraceError("a trace needs a prompt")
        if _are_sound(self.loss_mask, self.logprobs):
            return
        for position, (trainable, value) in enumerate(zip(self.loss_mask, self.logprobs, strict=True)):
            if trainable not in (0, 1):
                raise TraceError(f"mask {trainable} at position {position}")
            if not math.isfinite(value) or value > 0:
                raise TraceError(f"logprob {value} at position {position}")

    @property
    def trainable_tokens(self) -> int:
        return sum(self.loss_mask)

    @property
    def policy_versions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.version for span in self.spans for part in span.versions))

    def to_row(self) -> TraceRow:
        """As plain values: what `json`, `datasets.Dataset.from_list` or `pandas.DataFrame` take."""
        return TraceRow(
            session_id=self.session_id,
            task_id=self.task_id,
            group=self.group_id,
            sample=self.sample,
            attempt=self.attempt,
            kind=self.kind,
            reward=self.reward,
            prompt_ids=self.prompt_ids.tolist(),
            completion_ids=self.response_ids.tolist(),
            mask=self.loss_mask.tolist(),
            logprobs=self.logprobs.tolist(),
            policy_versions=list(self.policy_versions),
            context_exact=self.context_exact,
            failure=self.failure,
        )

    def to_numpy(self) -> dict[str, numpy.ndarray[Any, Any]]:
        """The arrays of `to_row`: `prompt_ids` and `completion_ids` (int32), `mask` (int8), `logprobs` (float32).
        They are copies. Needs numpy."""
        try:
            import numpy  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise ImportError("Trace.to_numpy needs numpy: pip install numpy") from error
        return {
            "prompt_ids": numpy.array(self.prompt_ids[:], numpy.int32),
            "completion_ids": numpy.array(self.response_ids, numpy.int32),
            "mask": numpy.array(self.loss_mask, numpy.int8),
            "logprobs": numpy.array(self.logprobs, numpy.float32),
        }


def _are_sound(loss_mask: LossMask, logprobs: Logprobs) -> bool:
    """Fast check without Python code per token, because a trace is checked each time it is copied."""
    if loss_mask.count(0) + loss_mask.count(1) != len(loss_mask):
        return False
    # A sum that includes NaN or infinity is not finite.
    return math.isfinite(sum(logprobs)) and max(logprobs, default=0.0) <= 0


class Dropped(msgspec.Struct, frozen=True):
    """Sampled tokens that are trainable in no trace, and why."""

    call_id: str
    start: int
    length: int
    reason: str


class Break(msgspec.Struct, frozen=True):
    """A call that starts a new trace although it follows another call, or that continues the trace at a cost named
    by the reason."""

    call_id: str
    parent_id: str | None
    reason: str


class TrajectoryStatistics(Strict):
    calls: int = 0
    traces: int = 0
    sampled_tokens: int = 0
    trainable_tokens: int = 0
    dropped_tokens: int = 0
    cut_tokens: int = 0
    """Tokens that the engine gave after a reply's end, at a stop text or a limit. They are not part of the call
    and not counted as sampled."""
    reported_tokens: int = 0
    """Tokens that an endpoint without token ids says it sampled. They are in no other number here."""
    append_only_pairs: int = 0
    """Pairs of calls where the second's raw request is the first's, its reply and something new, and the second
    has trainable tokens. Calls with equal requests and replies count as one if only one can be merged."""
    merged_pairs: int = 0
    merge_rate: float | None = None
    """`merged_pairs / append_only_pairs`; None without pairs."""
    breaks: dict[str, int] = {}
    dropped: dict[str, int] = {}
    """Tokens by reason."""
    inexact_traces: int = 0
    """Traces whose context is not what the engine had."""
    tolerant_matches: dict[str, int] = {}


class Trajectory(msgspec.Struct, frozen=True):
    session_id: str
    builder: str
    traces: tuple[Trace, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    breaks: tuple[Break, ...] = ()
    statistics: dict[str, Any] = {}
    """`TrajectoryStatistics` as plain values, so that reading the file needs no pydantic."""
    builder_version: str = ""
    """Version of the builder's rules: with the same version, the same calls give the same trajectory."""
