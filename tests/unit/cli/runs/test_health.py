"""`polar health`: a table by harness, JSON, and exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.types import Health, HealthFinding, Lease, Session, SessionResult, Stage, TaskRequest

Polar = Callable[..., Result]
BROKEN = Health(
    verdict="broken",
    findings=(HealthFinding(what="not_captured", count=1, detail="its log has 500 + 20 tokens\x1b[31m"),),
    calls=1,
    own_calls=2,
)


def test_a_table_by_harness(run: RunPaths, polar: Polar) -> None:
    result = polar("health")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert result.exit_code == 0, result.stdout
    assert ["harness", "trust", "sessions", "ok"] == rows[2][:4]
    assert rows[3][1] == "B", "exact, and the harness of these sessions kept no log"


def test_json_has_every_session(run: RunPaths, polar: Polar) -> None:
    report = json.loads(polar("health", run.run_id, "--json").stdout)
    (row,) = report["harnesses"]
    assert (report["run_id"], row["trust"], row["compared"]) == (run.run_id, "B", 0)
    assert {each["session_id"] for each in row["by_session"]} >= {"add-0"}
    assert all(each["verdict"] in ("ok", "suspect") for each in row["by_session"])


@pytest.fixture
def sick_run(run: RunPaths) -> RunPaths:
    """One more session in it, whose harness reached a model past the gateway."""
    asyncio.run(_add_sick(run))
    return run


async def _add_sick(run: RunPaths) -> None:
    session = Session(session_id="sick-0", task_id="sick", index=0)
    async with await Journal.open(run.journal) as journal:
        await journal.add_session(Lease(session=session, task=TaskRequest(task_id="sick", instruction="x")))
        result = SessionResult(
            session_id="sick-0",
            task_id="sick",
            index=0,
            attempt=1,
            stage=Stage.COMPLETED,
            health=BROKEN,
            versions={"harness": "pi 1.5.0"},
        )
        await journal.save_result(result)


def test_a_broken_session_is_listed_and_an_exit_code_of_1(sick_run: RunPaths, polar: Polar) -> None:
    result = polar("health", "--sessions")
    assert result.exit_code == 1
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["pi", "1.5.0", "C", "1", "0", "0", "1", "0", "not_captured", "1"] in rows
    assert any(row[:3] == ["sick-0", "broken", "not_captured"] for row in rows)
    assert "sick-0" not in polar("health").stdout


def test_show_has_the_health_of_a_session(sick_run: RunPaths, polar: Polar) -> None:
    shown = polar("show", "sick-0").stdout
    assert "health: broken" in shown and "not_captured 1: its log has 500 + 20 tokens" in shown
    assert "\x1b" not in shown
    assert "health:" not in polar("show", "add-0").stdout, "stored by an older Polar"


def test_no_such_run_is_refused(run: RunPaths, polar: Polar) -> None:
    assert polar("health", "no-such-run").exit_code == 2
