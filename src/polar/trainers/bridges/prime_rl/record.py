"""What a session adds to a verifiers `Trace`: its messages and tokens, its reward, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from polar.trainers.bridges.prime_rl.message_graph import graph_of
from polar.trainers.bridges.sessions import SessionTraces
from polar.types import Call, Stage

STOPS = {"max_calls": "max_turns", "max_tokens": "max_output_tokens"}
"""verifiers' names of the budgets: it takes only its own for the end of a truncated trace."""


def record_of(session: SessionTraces, calls: Iterable[Call], max_tokens: int | None = None) -> dict[str, Any]:
    """The fields of a verifiers `Trace`, except who made it and for what task. A session that is in no baseline is
    not `ok` and has no reward, so that prime-rl leaves it out of its group."""
    result = session.result
    graph = graph_of(calls, session, max_tokens)
    failure = result.failure
    errors = [{"type": failure.type, "message": f"{failure.where}: {failure.message}"}] if failure else []
    if not result.in_baseline and not errors:
        errors = [{"type": "LeftOut", "message": session.left_out}]
    return {
        "nodes": graph.nodes,
        "calls": graph.calls,
        "rewards": {"polar": {"score": session.reward} if result.in_baseline else None},
        "metrics": dict(result.score.metrics) if result.score else {},
        "info": {"polar": _described(session)},
        "is_completed": True,
        "ok": result.in_baseline,
        "stop_condition": stop_condition_of(session, graph.was_cut),
        "is_timeout": result.stage is Stage.TIMED_OUT,
        "errors": errors,
    }


def stop_condition_of(session: SessionTraces, was_cut: bool) -> str:
    """In verifiers' words, what ended the session."""
    result = session.result
    if not result.in_baseline:
        return "error"
    if result.stage is Stage.TIMED_OUT:
        return "agent_timeout"
    if result.ended_by:
        return STOPS.get(result.ended_by, result.ended_by)
    if was_cut:
        return "max_total_tokens"
    return "harness_error" if result.failure else "agent_completed"


def _described(session: SessionTraces) -> dict[str, str]:
    result = session.result
    return {
        "session_id": result.session_id,
        "task_id": result.task_id,
        "stage": result.stage.value,
        "left_out": session.left_out,
    }
