"""The nouns of Polar. Imports nothing of ours; everything else imports this.

What a person writes or another process sends is pydantic (frozen, unknown fields refused). What lies on
the token path is a `msgspec.Struct` with compact arrays, because a session may hold a million tokens.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints, model_validator

if TYPE_CHECKING:
    TokenIds = array[int]
    Logprobs = array[float]
    LossMask = array[int]
else:  # array is not subscriptable at run time before Python 3.12
    TokenIds = Logprobs = LossMask = array

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Ids become folder names, so they can hold no separator and cannot begin with a dot."""

Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]


def is_id(text: str) -> bool:
    return re.fullmatch(ID_PATTERN, text) is not None


def token_ids(values: Iterable[int] = ()) -> TokenIds:
    return array("i", values)


def logprobs(values: Iterable[float] = ()) -> Logprobs:
    return array("f", values)


def loss_mask(values: Iterable[int] = ()) -> LossMask:
    return array("b", values)


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# What a trainer asks for


class Spec(Strict):
    """A plug-in by name with its options; a bare string is the name alone."""

    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class Sampling(Strict):
    """How to sample. The defaults are the plain distribution, which training needs."""

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: int | None = None
    """Seed of the first call of the first sample; later calls and samples derive theirs from it."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Upper bound for one reply; a harness may ask for less, never for more."""


class Budgets(Strict):
    """One clock per stage; waiting in a queue costs none of them."""

    init_s: float = Field(default=300.0, gt=0)
    run_s: float = Field(default=600.0, gt=0)
    postrun_s: float = Field(default=300.0, gt=0)
    max_calls: int | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    """Sampled tokens of the whole session."""


class TaskRequest(Strict):
    task_id: Id | None = None
    instruction: str = Field(min_length=1, max_length=1_000_000)
    num_samples: int = Field(default=1, ge=1, le=10_000)
    runtime: Spec = Spec(name="local")
    harness: Spec = Spec(name="pi")
    builder: Spec = Spec(name="prefix_merging")
    evaluator: Spec = Spec(name="session_completion")
    sampling: Sampling = Sampling()
    budgets: Budgets = Budgets()
    files: dict[str, str] = {}
    """Files laid into the workspace before the harness starts: relative path to text."""
    callback_url: str | None = None
    priority: int = 0
    metadata: dict[str, Any] = {}
    group_id: Id | None = None


# The life of a session


class Stage(StrEnum):
    QUEUED = "QUEUED"
    INIT = "INIT"
    READY = "READY"
    RUNNING = "RUNNING"
    POSTRUN = "POSTRUN"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        return self in FINAL_STAGES


FINAL_STAGES = frozenset({Stage.COMPLETED, Stage.FAILED, Stage.TIMED_OUT, Stage.CANCELLED})
_BROKEN_OFF = frozenset({Stage.FAILED, Stage.TIMED_OUT, Stage.CANCELLED})
TRANSITIONS: dict[Stage, frozenset[Stage]] = {
    Stage.QUEUED: frozenset({Stage.INIT, Stage.CANCELLED, Stage.FAILED}),
    Stage.INIT: _BROKEN_OFF | {Stage.READY},
    Stage.READY: frozenset({Stage.RUNNING, Stage.CANCELLED, Stage.FAILED}),
    Stage.RUNNING: _BROKEN_OFF | {Stage.POSTRUN},
    Stage.POSTRUN: FINAL_STAGES,
    **{stage: frozenset() for stage in FINAL_STAGES},
}


class IllegalTransition(ValueError):
    """A session was told to skip or repeat a stage."""


class Session(Strict):
    """One independent attempt at a task."""

    session_id: Id
    task_id: Id
    index: int = Field(ge=0)
    """Which sample of its task this is."""
    attempt: int = Field(default=1, ge=1)
    """Grows when a lost session is run again; a result of an older attempt is refused."""
    stage: Stage = Stage.QUEUED
    node_id: str | None = None

    def advance(self, stage: Stage) -> Session:
        if stage not in TRANSITIONS[self.stage]:
            raise IllegalTransition(f"session {self.session_id}: {self.stage} cannot become {stage}")
        return self.model_copy(update={"stage": stage})


class Lease(Strict):
    """A session handed to a node, with all it needs to run it."""

    session: Session
    task: TaskRequest


class Slot(Strict):
    """A session's address at its gateway."""

    base_url: str
    """Without a version segment; a harness appends what its dialect wants."""
    key: str = Field(repr=False)
    model: str
    context_tokens: int


# The canonical conversation


class ToolCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """JSON text as the model wrote it; never re-serialised."""
    call_id: str = ""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON schema of the arguments."""


class CallProfile(msgspec.Struct, frozen=True):
    """What the gateway must know of a harness to read its calls."""

    auxiliary_without_tools: bool = False
    """Calls that declare no tools are titles or summaries, not the agent at work."""


# The token path

CallKind = Literal["agent", "subagent", "compaction", "auxiliary"]
FinishReason = Literal["stop", "length", "tool_calls", "aborted"]


class CallTimes(msgspec.Struct, frozen=True):
    """Unix seconds."""

    arrived: float
    rendered: float
    sampled: float


class Call(msgspec.Struct, frozen=True):
    """One captured model call, kept as what is new against its parent.

    The prompt sent to the engine is the parent's prompt, the parent's completion and `new_prompt_ids`, in
    this order; for a call that continues no parent's tokens (`continues` false) it is `new_prompt_ids` alone.
    """

    call_id: str
    session_id: str
    parent_id: str | None
    continues: bool
    new_prompt_ids: TokenIds
    completion_ids: TokenIds
    logprobs: Logprobs
    """One per completion id; NaN where the engine gave none."""
    prompt_digest: bytes
    """`digest_of` the whole prompt as it was sent: proves that the parts above put it together again."""
    prompt_tokens: int
    finish_reason: FinishReason
    new_messages: tuple[Message, ...]
    """Messages new against the parent's request, the harness's echo of the parent's reply first."""
    response: Message
    tools: tuple[Tool, ...]
    request_digests: tuple[bytes, ...]
    """A digest per item of the raw request history, in order: evidence that owes nothing to our parsing."""
    dialect: str
    kind: CallKind
    sampling: dict[str, Any]
    engine: str
    logprob_mode: str
    times: CallTimes
    policy_version: str = ""
    break_reason: str = ""
    """Why the tokens of the parent are not continued, where there is a parent or a near match."""
    tolerant: tuple[str, ...] = ()
    """How the request's history differed from the stored one and was matched all the same."""
    evaluated_tokens: int | None = None
    """Prompt tokens the engine really computed; the rest came from its prefix cache."""
    received: bool = False
    """The last byte of the reply was written to the harness without error."""


class Span(msgspec.Struct, frozen=True):
    """Where one call's sampled tokens stand in a trace's response."""

    call_id: str
    start: int
    length: int
    policy_version: str = ""


class TraceError(ValueError):
    """A trace that would lie to a trainer; the message says in which way."""


class Trace(msgspec.Struct, frozen=True):
    """One trainable token sequence. Refuses to exist with unequal lengths or a non-finite logprob."""

    session_id: str
    prompt_ids: TokenIds
    response_ids: TokenIds
    loss_mask: LossMask
    """1 where the token was sampled and may be trained on, else 0; one per response id."""
    logprobs: Logprobs
    """The engine's, where the mask is 1; 0.0 elsewhere."""
    spans: tuple[Span, ...]
    kind: CallKind = "agent"
    context_exact: bool = True
    reward: float | None = None
    metadata: dict[str, Any] = {}

    def __post_init__(self) -> None:
        size = len(self.response_ids)
        if len(self.loss_mask) != size or len(self.logprobs) != size:
            raise TraceError(
                f"{size} response ids, but {len(self.loss_mask)} mask bits and {len(self.logprobs)} logprobs"
            )
        if not self.prompt_ids:
            raise TraceError("a trace needs a prompt")
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
        return tuple(dict.fromkeys(span.policy_version for span in self.spans))


class Dropped(msgspec.Struct, frozen=True):
    """Sampled tokens that stand in no trace as trainable, and why."""

    call_id: str
    start: int
    length: int
    reason: str


class Break(msgspec.Struct, frozen=True):
    """A call that starts a trace of its own although it follows another."""

    call_id: str
    parent_id: str | None
    reason: str


class TrajectoryStatistics(Strict):
    calls: int = 0
    traces: int = 0
    sampled_tokens: int = 0
    trainable_tokens: int = 0
    dropped_tokens: int = 0
    append_only_pairs: int = 0
    """Pairs of calls of which the second's raw request is the first's, its reply and something new, and the second
    has something to train on."""
    merged_pairs: int = 0
    merge_rate: float | None = None
    """`merged_pairs / append_only_pairs`; null when there are none."""
    breaks: dict[str, int] = {}
    dropped: dict[str, int] = {}
    """Tokens by reason."""
    tolerant_matches: dict[str, int] = {}


class Trajectory(msgspec.Struct, frozen=True):
    session_id: str
    builder: str
    traces: tuple[Trace, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    breaks: tuple[Break, ...] = ()
    statistics: dict[str, Any] = {}
    """`TrajectoryStatistics` as plain values, so that the blob needs no pydantic to be read."""


# What comes out


class Score(Strict):
    reward: FiniteFloat | None
    """None: no verdict could be reached, which is not a reward of zero."""
    trace_rewards: tuple[FiniteFloat, ...] | None = None
    metrics: dict[str, float] = {}
    reasons: tuple[str, ...] = ()


class Failure(Strict):
    where: str
    """The stage or part that failed: `init`, `harness`, `engine`, `builder`, `evaluator`, ..."""
    type: str
    message: str
    policy: bool = False
    """True: the policy's own doing (trainable, reward 0). False: infrastructure, not for the baseline."""


class SessionResult(Strict):
    session_id: Id
    task_id: Id
    index: int
    attempt: int
    stage: Stage
    score: Score | None = None
    failure: Failure | None = None
    statistics: TrajectoryStatistics = TrajectoryStatistics()
    traces: str | None = None
    """Reference to the trajectory blob: a path relative to the run folder."""
    exit_code: int | None = None
    stage_s: dict[str, float] = {}
    """Seconds spent in each stage, queueing listed apart as `QUEUED` and `READY`."""
    versions: dict[str, str] = {}
