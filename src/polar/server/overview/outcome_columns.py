"""The outcome of a session as columns: what lists and statistics need, so that they never parse a result."""

from __future__ import annotations

from typing import Any

from polar.types import SessionResult
from polar.types.base import MAX_CURSOR

MAX_TEXT = 200


def outcome_columns(result: SessionResult) -> dict[str, Any]:
    """Without those that the database knows: number, cursor, group, harness, node and time."""
    failure, statistics = result.failure, result.statistics
    run_s = result.stage_s.get("RUNNING")
    return {
        "session_id": result.session_id,
        "stage": result.stage.value,
        "reward": result.reward,
        "untrainable_reason": result.untrainable_reason,
        "failed_by": "" if failure is None else "agent" if failure.agent else "infrastructure",
        "failure_where": "" if failure is None else storable(failure.where)[:MAX_TEXT],
        "failure_type": "" if failure is None else storable(failure.type)[:MAX_TEXT],
        "calls": _bounded(statistics.calls),
        "traces": _bounded(statistics.traces),
        "sampled_tokens": _bounded(statistics.sampled_tokens),
        "append_only_pairs": _bounded(statistics.append_only_pairs),
        "merged_pairs": _bounded(statistics.merged_pairs),
        "policy_updates": _bounded(result.policy_updates),
        "stale": result.stale,
        "health": None if result.health is None else result.health.verdict,
        "run_s": run_s,
    }


def storable(text: str) -> str:
    """PostgreSQL refuses the character NUL and lone surrogates."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _bounded(count: int) -> int:
    """A node may report any integer, and none may keep its result out of the database."""
    return min(max(count, 0), MAX_CURSOR)
