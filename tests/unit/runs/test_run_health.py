"""The health of a run: problems by harness, and the level of trust that the sessions earn."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.runs.health import HarnessHealth, SessionHealth, health_of_run
from polar.runs.stored import read_run
from polar.store.paths import RunPaths
from polar.types import Health, HealthFinding, HealthProblem, verdict_of

STORED = Path(__file__).parents[2] / "stored" / "run-2026-11"


def session(*problems: HealthProblem, own: int | None = 2, calls: int = 2) -> SessionHealth:
    findings = tuple(HealthFinding(what=what) for what in problems)
    health = Health(verdict=verdict_of(findings), findings=findings, calls=calls, own_calls=own)
    return SessionHealth("s", "pi 1.5.0", health)


def harness(*sessions: SessionHealth) -> HarnessHealth:
    return HarnessHealth("pi 1.5.0", sessions)


def test_ten_sessions_whose_own_log_agrees_earn_an_a() -> None:
    assert harness(*[session()] * 10).trust == "A"
    assert harness(*[session("truncated", "tool_loop", "budget_end")] * 10).trust == "A", "these are the agent's"


def test_fewer_sessions_or_one_without_a_log_are_a_b() -> None:
    assert harness(*[session()] * 9).trust == "B"
    assert harness(*[session()] * 10, session(own=None)).trust == "B"
    assert harness(*[session()] * 10, session("own_log_unreadable", own=None)).trust == "B"
    assert harness(*[session()] * 10, session("reply_shared", own=3)).trust == "B"


@pytest.mark.parametrize("what", ["capture_inexact", "capture_missing", "not_captured", "not_in_own_log"])
def test_one_disagreement_is_a_c(what: HealthProblem) -> None:
    assert harness(*[session()] * 100, session(what)).trust == "C"


def test_without_calls_nothing_was_measured() -> None:
    assert harness().trust == harness(session(own=None, calls=0)).trust == "-"


def test_problems_are_counted_by_session() -> None:
    found = harness(session("truncated"), session("truncated", "capture_inexact"), session())
    assert found.counts() == {"capture_inexact": 1, "truncated": 2}
    assert found.verdicts() == {"ok": 1, "suspect": 1, "broken": 1}


def test_a_run_that_an_older_polar_stored_is_examined_now() -> None:
    (found,) = health_of_run(read_run(RunPaths(STORED)))
    assert found.harness == "shell unversioned" and found.trust == "B"
    assert all(each.examined_now for each in found.sessions)
    assert found.counts() == {"truncated": 3} and found.compared == 0
