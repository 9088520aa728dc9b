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
from polar.types.chat import CallProfile, Message, Tool, ToolCall
from polar.types.result import Failure, Score, SessionResult
from polar.types.session import FINAL_STAGES, TRANSITIONS, IllegalTransition, Lease, Session, Slot, Stage
from polar.types.task import Budgets, Sampling, Spec, TaskRequest
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
    "Dropped",
    "Failure",
    "FinishReason",
    "Id",
    "IllegalTransition",
    "Lease",
    "Logprobs",
    "LossMask",
    "Message",
    "Sampling",
    "Score",
    "Session",
    "SessionResult",
    "Slot",
    "Span",
    "Spec",
    "Stage",
    "Strict",
    "TaskRequest",
    "TokenIds",
    "Tool",
    "ToolCall",
    "Trace",
    "TraceError",
    "Trajectory",
    "TrajectoryStatistics",
    "is_id",
    "logprobs",
    "loss_mask",
    "token_ids",
]
