"""Stale sessions: those that have lived through more policy updates than their task allows.

A session that is ended for it keeps what was captured, like any cancelled one; it is not judged.
"""

from __future__ import annotations

from polar.session.live import LiveSession
from polar.types import Failure


def too_old(live: LiveSession) -> bool:
    """Whether it must be ended now."""
    bound = live.task.staleness
    return bound is not None and bound.action == "cancel" and _updates(live) > bound.max_updates


def note_age(live: LiveSession) -> None:
    """Called when the stages end: updates during the teardown do not count."""
    live.policy_updates = _updates(live)


def is_stale(live: LiveSession) -> bool:
    bound = live.task.staleness
    return bound is not None and live.policy_updates > bound.max_updates


def stale_failure(live: LiveSession) -> Failure:
    bound = live.task.staleness
    assert bound is not None, "a session without a bound is never stale"
    first, now = live.services.policy.versions_of(live.session_id)
    message = (
        f"its first call began under policy version {first!r}, the version is now {now!r}; "
        f"updates since then: {_updates(live)}, the task's bound: {bound.max_updates}"
    )
    return Failure(where="policy", type="Stale", message=message)


def _updates(live: LiveSession) -> int:
    return live.services.policy.updates_of(live.session_id)
