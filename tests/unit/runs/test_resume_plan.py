"""Which sessions of a stored run go on: those without a result that stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.config import Config
from polar.errors import ConfigError
from polar.runs.resume import ResumePlan, planned_resume, write_tasks
from polar.store.journal import Journal
from polar.store.paths import RunPaths, RunRecord
from polar.types import Failure, Lease, Session, SessionResult, Stage, TaskRequest

TASK = TaskRequest(task_id="t", instruction="x", num_samples=6)
STALE = Failure(where="policy", type="Stale", message="too old")
LOST = Failure(where="engine", type="EngineError", message="gone")
ENDED: dict[int, tuple[Stage, Failure | None]] = {
    0: (Stage.COMPLETED, None),
    1: (Stage.CANCELLED, None),
    2: (Stage.CANCELLED, STALE),
    3: (Stage.FAILED, LOST),
}
BEGUN = 4
"""Has no result. The last one is not even in the journal."""


async def stored_run(folder: Path) -> RunPaths:
    paths = RunPaths.create(folder)
    paths.write_record(RunRecord(run_id=paths.run_id, config=Config(), versions={}, started=1.0))
    write_tasks(paths, [TASK])
    async with await Journal.open(paths.journal) as journal:
        for index in (*ENDED, BEGUN):
            session = Session(session_id=TASK.session_id(index), task_id="t", index=index)
            await journal.add_session(Lease(session=session, task=TASK))
        for index, (stage, failure) in ENDED.items():
            name = TASK.session_id(index)
            result = SessionResult(
                session_id=name, task_id="t", index=index, attempt=1, stage=stage, failure=failure
            )
            await journal.save_result(result)
    return paths


def kept(plan: ResumePlan) -> list[int]:
    return [result.index for result in plan.results]


async def test_verdicts_stand_and_the_rest_goes_on(tmp_path: Path) -> None:
    plan = await planned_resume(await stored_run(tmp_path), Config(), None)
    assert kept(plan) == [0, 2, 3]
    assert plan.earlier.finished == {"t-0", "t-2", "t-3"}
    assert {name: earlier[-1].attempt for name, earlier in plan.earlier.attempts.items()} == {"t-1": 1, "t-4": 1}
    assert plan.words == "3 of 6 sessions have their result; 3 to run"
    assert plan.open_tasks == [TASK]


async def test_infrastructure_failures_go_on_when_asked(tmp_path: Path) -> None:
    plan = await planned_resume(await stored_run(tmp_path), Config(), None, retry_failed=True)
    assert kept(plan) == [0, 2]
    assert [(each.where, each.why) for each in plan.earlier.attempts["t-3"]] == [("engine", "gone")]


async def test_a_killed_run_of_the_whole_service_is_refused(tmp_path: Path) -> None:
    paths = await stored_run(tmp_path)
    (paths.root / "nodes").mkdir()
    with pytest.raises(ConfigError, match="its nodes have them"):
        await planned_resume(paths, Config(), None)
