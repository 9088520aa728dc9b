"""What this server has counted since it started. Counted after the commit: a change that fails, or that the
database runs again, counts nothing twice.

Servers on one database count apart: a query sums over them.
"""

from __future__ import annotations

from collections.abc import Iterable

from polar import __version__
from polar.monitoring.exposition import LabelLimit, Meters
from polar.types import SessionResult

CHANGE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
UPDATES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32)
MOST_CAUSES = 200
"""Failures are named by nodes and plug-ins: further ones are counted as `other`."""
MOST_HARNESSES = 50


class ServerCounts:
    """Used on the event loop only."""

    def __init__(self) -> None:
        self.meters = meters = Meters(__version__)
        self._cause, self._harness = LabelLimit(MOST_CAUSES), LabelLimit(MOST_HARNESSES)
        about = (
            "Sessions that got their result, by stage and cause; `failed_by` is agent, infrastructure or empty."
        )
        self._ended = meters.counter("polar_sessions_ended", about, "stage", "failed_by", "where", "type")
        about = "Staleness: changes of the policy version between a session's first call and its end."
        self._updates = meters.histogram("polar_session_policy_updates", about, UPDATES)
        self._stale = meters.counter("polar_sessions_stale", "Ended sessions older than their task allows.")
        about = "Pairs of calls that a builder could merge, and did (`merged`); their ratio is the merge rate."
        self._pairs = meters.counter("polar_call_pairs", about, "harness", "merged")
        self._lost = meters.counter("polar_leases_lost", "Leases that expired: the sessions run again or fail.")
        self._callbacks = meters.counter("polar_callbacks", "Tries of callbacks.", "outcome")
        about = "From the request of a change to its commit, waiting for earlier changes included."
        self._change_s = meters.histogram("polar_database_change_seconds", about, CHANGE_S)
        self._errors = meters.counter("polar_database_errors", "Changes that the database failed.")
        for outcome in ("delivered", "failed", "given_up"):
            self._callbacks.labels(outcome)

    def ended(self, endings: Iterable[tuple[str, SessionResult]]) -> None:
        """Each with the name of its harness."""
        for harness, result in endings:
            self._count_cause(result)
            self._updates.observe(result.policy_updates)
            self._stale.inc(result.stale)
            self._count_pairs(self._harness(harness), result)

    def leases_lost(self, count: int) -> None:
        self._lost.inc(count)

    def callback(self, outcome: str) -> None:
        self._callbacks.labels(outcome).inc()

    def changed(self, took_s: float) -> None:
        self._change_s.observe(took_s)

    def database_failed(self) -> None:
        self._errors.inc()

    def _count_cause(self, result: SessionResult) -> None:
        failure = result.failure
        if failure is None:
            cause = ("", "", "")
        else:
            by = "agent" if failure.agent else "infrastructure"
            # Together, so that the number of pairs is bounded and not their product.
            where, _, kind = self._cause(f"{failure.where}\0{failure.type}").partition("\0")
            cause = (by, where, kind or where)
        self._ended.labels(result.stage.value, *cause).inc()

    def _count_pairs(self, harness: str, result: SessionResult) -> None:
        """A node may report any integer."""
        pairs = max(0, result.statistics.append_only_pairs)
        merged = min(max(0, result.statistics.merged_pairs), pairs)
        self._pairs.labels(harness, "yes").inc(merged)
        self._pairs.labels(harness, "no").inc(pairs - merged)
