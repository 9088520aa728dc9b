"""`polar health`: a table by harness, JSON, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from polar.runs import health as run_health
from polar.runs.health import HarnessHealth, SessionHealth
from polar.store.paths import RunPaths
from polar.types import Health, HealthFinding

Polar = Callable[..., Result]
BROKEN = Health(
    verdict="broken",
    findings=(HealthFinding(what="not_captured", count=1, detail="its log has 500 + 20 tokens"),),
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


def test_a_broken_session_is_listed_and_an_exit_code_of_1(
    run: RunPaths, polar: Polar, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [HarnessHealth("pi 1.5.0", (SessionHealth("add-0", "pi 1.5.0", BROKEN),))]
    monkeypatch.setattr(run_health, "health_of_run", lambda _: found)
    result = polar("health", "--sessions")
    assert result.exit_code == 1
    assert "not_captured 1: its log has 500 + 20 tokens" in result.stdout and "C" in result.stdout.split()
    assert "500 + 20" not in polar("health").stdout


def test_no_such_run_is_refused(run: RunPaths, polar: Polar) -> None:
    assert polar("health", "no-such-run").exit_code == 2
