"""Stale sessions are named wherever sessions are shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from polar.cli.runs.summary import print_summary, summary_json
from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.types import Failure, Lease, PolicySpan, Session, SessionResult, Stage, Staleness, TaskRequest

from ..conftest import a_call

Polar = Callable[..., Result]


def a_result(session_id: str, **fields: Any) -> SessionResult:
    values: dict[str, Any] = {"task_id": "late", "index": 0, "attempt": 1, "stage": Stage.COMPLETED}
    return SessionResult(session_id=session_id, **(values | fields))


@pytest.fixture
def stale_run(run: RunPaths) -> RunPaths:
    """Two more sessions in it: one was broken off for its age, the other marked."""
    asyncio.run(_add(run))
    return run


async def _add(run: RunPaths) -> None:
    failure = Failure(where="policy", type="Stale", message="too old")
    ends: list[tuple[str, dict[str, Any]]] = [
        ("cancel", {"stage": Stage.CANCELLED, "failure": failure}),
        ("mark", {}),
    ]
    async with await Journal.open(run.journal) as journal:
        for action, fields in ends:
            session = Session(session_id=f"{action}-0", task_id=action, index=0)
            bound = Staleness.model_validate({"max_updates": 1, "action": action})
            task = TaskRequest(task_id=action, instruction="x", staleness=bound)
            await journal.add_session(Lease(session=session, task=task))
            await journal.record_stage(session.session_id, fields.get("stage", Stage.COMPLETED), 1.0)
            result = a_result(session.session_id, task_id=action, policy_updates=2, stale=True, **fields)
            await journal.save_result(result)
        spans = (PolicySpan("1", 0, 1), PolicySpan("2", 1, 1))
        await journal.append_call(a_call("9", "hi", "ok", session_id="mark-0", policy_spans=spans))


def test_ls_names_them(stale_run: RunPaths, polar: Polar) -> None:
    assert "COMPLETED 2 FAILED 1 CANCELLED 1, 2 stale" in polar("ls").stdout
    assert json.loads(polar("ls", "--json").stdout)["runs"][0]["stale"] == 2
    listed = polar("ls", stale_run.run_id).stdout
    assert "CANCELLED, stale" in listed and "COMPLETED, stale" in listed and "policy: too old" in listed
    rows = json.loads(polar("ls", stale_run.run_id, "--json").stdout)["sessions"]
    assert {row["session_id"]: (row["stale"], row["policy_updates"]) for row in rows} == {
        "add-0": (False, 0),
        "add-1": (False, 0),
        "cancel-0": (True, 2),
        "mark-0": (True, 2),
    }


@pytest.mark.parametrize("action", ["cancel", "mark"])
def test_show_says_how_old_and_what_the_task_allows(stale_run: RunPaths, polar: Polar, action: str) -> None:
    shown = polar("show", f"{action}-0").stdout
    assert f"stale, policy updates since its first call: 2; the task allows 1 ({action})" in shown
    assert "policy updates" not in polar("show", "add-0").stdout


def test_show_says_which_reply_spans_an_update(stale_run: RunPaths, polar: Polar) -> None:
    assert "starts, policy updated within" in polar("show", "mark-0").stdout
    [call] = json.loads(polar("show", "mark-0", "--json").stdout)["calls"]
    assert (call["policy_spans"], call["updated_within"]) == ([["1", 0, 1], ["2", 1, 1]], False)


def test_the_summary_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    results = [a_result(f"t-{n}", stale=n > 0, policy_updates=n) for n in range(3)]
    print_summary(results)
    assert "2 stale, with the policy updates each has lived through: t-1 (1), t-2 (2)" in capsys.readouterr().out
    assert summary_json(results)["stale"] == 2
    print_summary(results[:1])
    assert "stale" not in capsys.readouterr().out
    print_summary([a_result(f"t-{n}", stale=True) for n in range(12)])
    assert "t-9 (0) and 2 more" in capsys.readouterr().out
