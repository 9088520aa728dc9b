"""Stored runs as a program reads them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import polar
from polar.builders.labels import labelled
from polar.config import Config
from polar.errors import PolarError
from polar.store.journal import Journal
from polar.store.paths import RunPaths, RunRecord
from polar.store.trajectories import write_trajectory
from polar.types import (
    Certificate,
    Lease,
    Score,
    Session,
    SessionResult,
    Span,
    Stage,
    TaskRequest,
    Trace,
    Trajectory,
    TrajectoryStatistics,
    logprobs,
    loss_mask,
    token_ids,
)

TASK = TaskRequest(task_id="add", instruction="add 2 and 2", num_samples=3)
STATISTICS = TrajectoryStatistics(calls=1, traces=1, sampled_tokens=2, trainable_tokens=2)
EXACT = Certificate(
    builder="per_request",
    calls=1,
    traces=1,
    sampled_tokens=2,
    trainable_tokens=2,
    dropped_tokens=0,
    calls_digest="",
    traces_digest="",
    exact=True,
)


def a_trajectory(session_id: str, reply: list[int]) -> Trajectory:
    trace = Trace(
        session_id=session_id,
        prompt_ids=token_ids([1, 2]),
        response_ids=token_ids(reply),
        loss_mask=loss_mask([1] * len(reply)),
        logprobs=logprobs([-0.5] * len(reply)),
        spans=(Span(f"{session_id}.1.1", 0, len(reply)),),
    )
    return Trajectory(session_id=session_id, builder="per_request", traces=(trace,))


async def _write(runs_dir: Path, run_id: str) -> RunPaths:
    """Three samples: one trainable, one without a verdict, one that still runs."""
    paths = RunPaths.create(runs_dir, run_id)
    paths.write_record(RunRecord(run_id=run_id, config=Config(), versions={}, started=1.0))
    async with await Journal.open(paths.journal) as journal:
        for index in range(3):
            session = Session(session_id=f"add-{index}", task_id="add", index=index)
            lease = Lease(session=session, task=TASK)
            await journal.add_session(lease)
            if index == 2:
                await journal.record_stage("add-2", Stage.INIT, 2.0)
                continue
            score = Score(reward=1.0 if index == 0 else None)
            trajectory = labelled(a_trajectory(f"add-{index}", [10 + index, 20]), lease, score, None)
            write_trajectory(paths.session(f"add-{index}").traces, trajectory)
            fields: dict[str, Any] = {"score": score, "statistics": STATISTICS, "certificate": EXACT}
            fields |= {"stage": Stage.COMPLETED, "index": index, "attempt": 1}
            await journal.save_result(SessionResult(session_id=f"add-{index}", task_id="add", **fields))
    return paths


@pytest.fixture
def stored(tmp_path: Path) -> RunPaths:
    asyncio.run(_write(tmp_path / "polar-runs", "20260101-000000-aaaa"))
    return asyncio.run(_write(tmp_path / "polar-runs", "20260102-000000-bbbb"))


def test_sessions_come_in_order_with_their_results_and_traces(stored: RunPaths) -> None:
    run = polar.load_run(stored.root)
    assert [session.session_id for session in run] == ["add-0", "add-1", "add-2"] and len(run) == 3
    assert [session.stage for session in run] == [Stage.COMPLETED, Stage.COMPLETED, Stage.INIT]
    assert [result.reward for result in run.results] == [1.0, None]
    assert [(trace.session_id, trace.group_id, trace.sample) for trace in run.traces] == [
        ("add-0", "add", 0),
        ("add-1", "add", 1),
    ]
    assert run["add-2"].result is None and run["add-2"].traces == () and run["add-2"].calls == []
    assert run["add-2"].stages == [(Stage.INIT, 2.0)] and run["add-0"].task == TASK
    assert run.record.started == 1.0


def test_rows_are_those_that_may_be_trained_on(stored: RunPaths) -> None:
    run = polar.load_run(stored.root)
    assert [(row["session_id"], row["reward"], row["completion_ids"]) for row in run.rows()] == [
        ("add-0", 1.0, [10, 20])
    ]
    assert [row["session_id"] for row in run.rows(trainable=False)] == ["add-0", "add-1"]


def test_a_group_is_given_when_all_its_sessions_have_ended(stored: RunPaths) -> None:
    run = polar.load_run(stored.root)
    assert list(run.groups()) == [], "its last session still runs"
    ended = polar.StoredRun(run.paths, run.sessions[:2])
    (group,) = ended.groups()
    assert (group.group_id, group.rewards) == ("add", [1.0])
    assert [session.traces for session in group.sessions] == [session.traces for session in ended]


def test_a_run_is_found_by_folder_id_or_beginning(
    stored: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for which in (None, "20260102-000000-bbbb", "20260102", f"polar-runs/{stored.run_id}", stored.root):
        assert polar.load_run(which).run_id == stored.run_id
    assert polar.load_run("20260101").run_id == "20260101-000000-aaaa"
    monkeypatch.chdir("/")
    assert polar.load_run("20260102", runs_dir=tmp_path / "polar-runs").run_id == stored.run_id
    with pytest.raises(PolarError, match="2 runs begin with '2026'"):
        polar.load_run("2026", runs_dir=tmp_path / "polar-runs")


def test_an_unknown_or_ambiguous_session_is_an_error_that_says_so(stored: RunPaths) -> None:
    run = polar.load_run(stored.root)
    with pytest.raises(PolarError, match=r"3 sessions of run .* begin with 'add': add-0, add-1, add-2"):
        _ = run["add"]
    with pytest.raises(PolarError, match="no session 'sub'"):
        _ = run["sub"]


async def test_a_run_is_read_where_a_loop_already_runs(stored: RunPaths) -> None:
    """As in a notebook."""
    assert len(polar.load_run(stored.root).traces) == 2
