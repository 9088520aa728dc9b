"""The health of a run: how often each problem occurs, by harness, and how far each harness is to be trusted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from polar.runs.stored import StoredRun, StoredSession
from polar.session.files.keep import HARNESS_HOME
from polar.session.health import HealthFacts, health_of, own_usage
from polar.types import BREAKING, HEALTH_PROBLEMS, HarnessUsage, Health, HealthProblem

TrustLevel = Literal["A", "B", "C", "-"]
ENOUGH_SESSIONS = 10
"""For trust level A."""
DISAGREEMENTS: tuple[HealthProblem, ...] = (*sorted(BREAKING), "not_in_own_log")
"""One of these in one session makes the level C."""


@dataclass(frozen=True)
class SessionHealth:
    session_id: str
    harness: str
    """With its version, if the session came so far."""
    health: Health
    examined_now: bool = False
    """The result has none: it was stored by an older Polar."""


@dataclass(frozen=True)
class HarnessHealth:
    harness: str
    sessions: tuple[SessionHealth, ...]

    @property
    def with_calls(self) -> list[Health]:
        return [each.health for each in self.sessions if each.health.calls]

    @property
    def compared(self) -> int:
        """Sessions with calls whose own log was read."""
        return sum(health.own_calls is not None for health in self.with_calls)

    @property
    def trust(self) -> TrustLevel:
        """docs/health.md has the rule."""
        seen = self.with_calls
        if any(each.health.has(*DISAGREEMENTS) for each in self.sessions):
            return "C"
        if not seen:
            return "-"
        agreeing = sum(each.own_calls is not None and not each.has("reply_shared") for each in seen)
        return "A" if agreeing == len(seen) >= ENOUGH_SESSIONS else "B"

    def counts(self) -> dict[str, int]:
        """In how many sessions each problem occurs."""
        return {what: n for what in HEALTH_PROBLEMS if (n := sum(s.health.has(what) for s in self.sessions))}

    def verdicts(self) -> dict[str, int]:
        found = [each.health.verdict for each in self.sessions]
        return {verdict: found.count(verdict) for verdict in ("ok", "suspect", "broken")}


def health_of_run(run: StoredRun) -> list[HarnessHealth]:
    """Sessions that have ended and made calls, by harness. One without a health is examined now."""
    by_harness = defaultdict[str, list[SessionHealth]](list)
    for session in run:
        if (found := _health_of_session(session)) is not None:
            by_harness[found.harness].append(found)
    return [HarnessHealth(name, tuple(sessions)) for name, sessions in sorted(by_harness.items())]


def _health_of_session(session: StoredSession) -> SessionHealth | None:
    result = session.result
    if result is None:
        return None
    harness = result.versions.get("harness", session.task.harness.name)
    if result.health is not None:
        return SessionHealth(session.session_id, harness, result.health)
    if not session.calls:
        return None
    own, problem = _own_of(session)
    facts = HealthFacts(
        calls=session.calls,
        certificate=result.certificate,
        own=own,
        own_problem=problem,
        ended_itself=result.exit_code is not None,
        ended_by=result.ended_by,
    )
    return SessionHealth(session.session_id, harness, health_of(facts), examined_now=True)


def _own_of(session: StoredSession) -> tuple[HarnessUsage | None, str]:
    try:
        return own_usage(session.task.harness, session.folder / "logs" / HARNESS_HOME), ""
    except Exception as error:  # a plug-in of the user's, and a file that the agent could write
        return None, f"{type(error).__name__}: {error}"
