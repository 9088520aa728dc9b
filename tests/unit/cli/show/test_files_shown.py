"""`polar show` says where a session's files are, and which are not there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.types import Lease, Session, SessionResult, Stage, TaskRequest

Polar = Callable[..., Result]


@pytest.fixture
def kept_run(run: RunPaths) -> RunPaths:
    """One more session in it, which kept files and lost some."""
    asyncio.run(_add(run))
    return run


async def _add(run: RunPaths) -> None:
    session = Session(session_id="keep-0", task_id="keep", index=0)
    result = SessionResult(
        session_id="keep-0",
        task_id="keep",
        index=0,
        attempt=1,
        stage=Stage.COMPLETED,
        kept=("artifacts/out", "patch.diff"),
        left_out=("artifacts/out: a\x1bb: not a plain file",),
    )
    async with await Journal.open(run.journal) as journal:
        await journal.add_session(Lease(session=session, task=TaskRequest(task_id="keep", instruction="x")))
        await journal.save_result(result)


def test_a_folder_and_what_is_in_it(kept_run: RunPaths, polar: Polar) -> None:
    shown = polar("show", "keep-0").stdout
    folder = kept_run.session("keep-0").root
    assert f"files in {folder}: logs, artifacts/out, patch.diff\n" in shown
    assert "  left out: artifacts/out: a␛b: not a plain file\n" in shown


def test_the_logs_are_there_in_any_case(run: RunPaths, polar: Polar) -> None:
    assert f"files in {run.session('add-1').root}: logs\n" in polar("show", "add-1").stdout


def test_json_has_the_same(kept_run: RunPaths, polar: Polar) -> None:
    shown = json.loads(polar("show", "keep-0", "--json").stdout)
    assert shown["folder"] == str(kept_run.session("keep-0").root)
    assert shown["result"]["kept"] == ["artifacts/out", "patch.diff"]
