"""The nouns of Polar. Imports nothing of ours; everything else imports this.

What a person writes or another process sends is pydantic (frozen, unknown fields refused). What lies on
the token path is a `msgspec.Struct` with compact arrays, because a session may hold a million tokens.
"""

from polar.types.base import (
    ID_PATTERN,
    Id,
    Logprobs,
    LossMask,
    Strict,
    TokenIds,
    is_id,
    logprobs,
    loss_mask,
    token_ids,
)
from polar.types.call import Call, CallKind, CallTimes, FinishReason
from polar.types.certificate import Certificate, Finding, Violation
from polar.types.chat import Delta, Image, Message, Tool, ToolCall
from polar.types.profile import CallProfile, KindRule
from polar.types.result import Failure, Score, SessionResult
from polar.types.service import (
    Event,
    HandBack,
    Heartbeat,
    HeartbeatReply,
    HeldSession,
    LeaseReply,
    LeaseRequest,
    NodeCredentials,
    NodeStatus,
    Policy,
    Registration,
    ResultEntry,
    ResultPage,
    SessionStatus,
    SessionUpload,
    TaskStatus,
)
from polar.types.session import FINAL_STAGES, TRANSITIONS, IllegalTransition, Lease, Session, Slot, Stage
from polar.types.task import Budgets, Retention, Sampling, Spec, TaskRequest
from polar.types.trace import Break, Dropped, Span, Trace, TraceError, Trajectory, TrajectoryStatistics

__all__ = [
    "FINAL_STAGES",
    "ID_PATTERN",
    "TRANSITIONS",
    "Break",
    "Budgets",
    "Call",
    "CallKind",
    "CallProfile",
    "CallTimes",
    "Certificate",
    "Delta",
    "Dropped",
    "Event",
    "Failure",
    "Finding",
    "FinishReason",
    "HandBack",
    "Heartbeat",
    "HeartbeatReply",
    "HeldSession",
    "Id",
    "IllegalTransition",
    "Image",
    "KindRule",
    "Lease",
    "LeaseReply",
    "LeaseRequest",
    "Logprobs",
    "LossMask",
    "Message",
    "NodeCredentials",
    "NodeStatus",
    "Policy",
    "Registration",
    "ResultEntry",
    "ResultPage",
    "Retention",
    "Sampling",
    "Score",
    "Session",
    "SessionResult",
    "SessionStatus",
    "SessionUpload",
    "Slot",
    "Span",
    "Spec",
    "Stage",
    "Strict",
    "TaskRequest",
    "TaskStatus",
    "TokenIds",
    "Tool",
    "ToolCall",
    "Trace",
    "TraceError",
    "Trajectory",
    "TrajectoryStatistics",
    "Violation",
    "is_id",
    "logprobs",
    "loss_mask",
    "token_ids",
]
