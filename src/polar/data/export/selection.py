"""Which traces of a group go into a data set, and the account of those that do not."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import NamedTuple

from polar.credit.advantages import FinishedSession, credit
from polar.data.export.chat import trained_calls
from polar.data.export.plan import ExportedGroup, ExportedSession, ExportPlan
from polar.types import Trace

NOT_EXACT = "not_exact"
REPEATED = "repeated"


class ChosenTrace(NamedTuple):
    trace: Trace
    number: int
    """From 0, in the trajectory of its session."""
    reward: float | None
    advantages: array[float] | None
    """One per response id. None: its session has no part in the comparison of its group."""

    @property
    def advantage(self) -> float | None:
        """The one value that all trained tokens have; None if they differ or there is none."""
        if self.advantages is None:
            return None
        found = {value for value, trained in zip(self.advantages, self.trace.loss_mask, strict=True) if trained}
        return found.pop() if len(found) == 1 else None


class ChosenSession(NamedTuple):
    session: ExportedSession
    group_id: str
    traces: tuple[ChosenTrace, ...]
    """None only for `sft` of a session whose engine gives no token ids: its calls have the conversation."""

    @property
    def session_id(self) -> str:
        return self.session.result.session_id


class LeftOut:
    """Counts by reason of what is not in the data set."""

    SHOWN_PROBLEMS = 20

    def __init__(self) -> None:
        self.sessions = Counter[str]()
        """By `SessionResult.untrainable_reason`, `no_traces` and `unreadable`."""
        self.traces = Counter[str]()
        """Of the other sessions. `reply_cut_off` only for chat form."""
        self.pairs = Counter[str]()
        """Groups and sessions without a pair."""
        self.problems: list[str] = []
        """What could not be read: the first few."""

    def unreadable(self, problem: str) -> None:
        self.sessions["unreadable"] += 1
        if len(self.problems) < self.SHOWN_PROBLEMS:
            self.problems.append(problem)


def choose(group: ExportedGroup, plan: ExportPlan, left_out: LeftOut) -> list[ChosenSession]:
    left_out.sessions["not_final"] += group.unfinished
    advantages = _advantages(group, plan)
    chosen: list[ChosenSession] = []
    for session in group.sessions:
        if not plan.has_task(session.result.task_id, group.group_id):
            continue
        if session.problem:
            left_out.unreadable(session.problem)
            continue
        if reason := _session_reason(session, plan):
            left_out.sessions[reason] += 1
            continue
        traces = _traces(session, plan, advantages, left_out)
        if traces or has_only_messages(session, plan):
            chosen.append(ChosenSession(session, group.group_id, traces))
    return chosen


def _session_reason(session: ExportedSession, plan: ExportPlan) -> str:
    """Why nothing of it may go in; empty: its traces decide."""
    result = session.result
    reason, certificate = result.untrainable_reason, result.certificate
    if certificate is not None and not certificate.exact and not plan.allow_inexact:
        return reason if reason and not plan.untrainable else NOT_EXACT
    if reason and not plan.untrainable and reason != NOT_EXACT:
        return reason
    if has_only_messages(session, plan):
        return _messages_reason(session, plan)
    return "" if session.trajectory is not None and session.trajectory.traces else "no_traces"


def has_only_messages(session: ExportedSession, plan: ExportPlan) -> bool:
    """An engine without token ids answered all its calls, and the plan takes conversations of such sessions."""
    wanted = plan.to == "sft" and plan.untrainable and not plan.pairs
    return wanted and bool(session.calls) and all(call.usage is not None for call in session.calls)


def _messages_reason(session: ExportedSession, plan: ExportPlan) -> str:
    least, reward = plan.least_reward, session.result.reward
    if least is not None and (reward is None or reward < least):
        return "below_min_reward"
    cut_off = any(call.finish_reason == "length" for call in session.calls if call.kind != "auxiliary")
    return "reply_cut_off" if cut_off and not plan.allow_inexact else ""


def _traces(
    session: ExportedSession, plan: ExportPlan, advantages: dict[int, array[float]], left_out: LeftOut
) -> tuple[ChosenTrace, ...]:
    chosen: list[ChosenTrace] = []
    for index, trace in enumerate(session.trajectory.traces if session.trajectory else ()):
        reward = session.result.reward if trace.reward is None else trace.reward
        repeats = REPEATED if (session.result.session_id, index) in plan.repeated else ""
        if reason := _trace_reason(trace, reward, plan) or _chat_reason(trace, session, plan) or repeats:
            left_out.traces[reason] += 1
        else:
            chosen.append(ChosenTrace(trace, index, reward, advantages.get(id(trace))))
    return tuple(chosen)


def _trace_reason(trace: Trace, reward: float | None, plan: ExportPlan) -> str:
    if not trace.context_exact and not plan.allow_inexact:
        return NOT_EXACT
    if not trace.trainable_tokens and not plan.untrainable:
        return "no_trainable_tokens"
    least = plan.least_reward
    if least is not None and (reward is None or reward < least):
        return "below_min_reward"
    return ""


def _chat_reason(trace: Trace, session: ExportedSession, plan: ExportPlan) -> str:
    """Why a trace has no conversation that could be exported."""
    if plan.to not in ("sft", "atif"):
        return ""
    reasons = {call.call_id: call.finish_reason for call in session.calls}
    if any(span.call_id not in reasons for span in trace.spans):
        return "no_calls"
    # A chat template ends every reply. One that was cut off at a limit would teach the model to end there, which
    # it never sampled.
    cut_off = plan.to == "sft" and any(reasons[call_id] == "length" for call_id in trained_calls(trace))
    return "reply_cut_off" if cut_off and not plan.allow_inexact else ""


def _advantages(group: ExportedGroup, plan: ExportPlan) -> dict[int, array[float]]:
    """By the identity of the trace. The baseline is over the whole group, also where only some of its tasks are
    exported."""
    if group.unfinished or not plan.needs_advantages:
        return {}
    finished = [FinishedSession(session.result, session.trajectory) for session in group.sessions]
    return {id(item.trace): item.advantages for item in credit(finished, plan.estimator)}
