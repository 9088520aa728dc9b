"""Bad timing and broken parts around a session: it reports exactly once, and its neighbours go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from workshop import WRITE, Workshop, agent_task, shell_task

from polar.config import Config, PoolConfig
from polar.data.source import TaskFileSource
from polar.gateway.calls.policy_gate import PolicyGate
from polar.node import JournalledSource, Node, open_node
from polar.runtimes.local.runtime import LocalRuntime
from polar.session.live import Services
from polar.session.pipeline import Pipeline
from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.testing import ScriptedEngine
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Lease, SessionResult, Stage, TaskRequest, Trajectory
from waiting import hang_limit, until

SCRIPT = [f"I write it. {WRITE}", "Done."]
UNKILLABLE = {"name": f"{__name__}:Unkillable"}


class Unkillable(LocalRuntime):
    async def kill(self) -> None:
        await super().kill()
        raise RuntimeError("a process that does not die")


class Stuck(LocalRuntime):
    """Does not come back from its first kill."""

    calls = 0

    async def kill(self) -> None:
        await super().kill()
        self.calls += 1
        if self.calls == 1:
            await asyncio.Event().wait()


class Endless(LocalRuntime):
    async def stop(self) -> None:
        await super().stop()
        await asyncio.Event().wait()


async def test_a_kill_that_fails_is_that_sessions_failure_and_nothing_is_judged(workshop: Workshop) -> None:
    tasks = [agent_task(task_id="bad", runtime=UNKILLABLE), agent_task(task_id="good")]
    await workshop.run(SCRIPT, tasks, init=1)
    bad, good = workshop.results["bad-0"], workshop.results["good-0"]
    assert (bad.stage, good.stage) == (Stage.FAILED, Stage.COMPLETED)
    assert bad.failure and (bad.failure.where, bad.failure.message) == ("runtime", "a process that does not die")
    assert bad.score is None and bad.statistics.trainable_tokens > 0
    assert workshop.leftovers() == []


async def test_a_kill_that_never_ends_has_a_deadline(workshop: Workshop) -> None:
    stuck = {"name": f"{__name__}:Stuck"}
    await workshop.run(SCRIPT, [agent_task(runtime=stuck, budgets={"postrun_s": 3.0})])
    assert workshop.only.stage == Stage.FAILED
    assert workshop.only.failure and workshop.only.failure.type == "TimeoutError"
    assert workshop.only.statistics.trainable_tokens > 0


async def test_a_runtime_that_does_not_stop_is_not_a_quiet_success(workshop: Workshop) -> None:
    endless = {"name": f"{__name__}:Endless"}
    await workshop.run(SCRIPT, [agent_task(runtime=endless, budgets={"postrun_s": 3.0})])
    assert workshop.only.stage == Stage.FAILED
    assert workshop.only.failure and workshop.only.failure.where == "teardown"
    assert workshop.only.reward is None and workshop.only.statistics.trainable_tokens > 0


class _BrokenDisplay:
    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        raise ValueError("the display is broken")


async def test_a_watcher_that_breaks_does_not_break_the_session(workshop: Workshop) -> None:
    heard: list[str] = []

    async def watched(node: Node, source: TaskFileSource) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["message"]))
        await node.serve(source, watchers=(_BrokenDisplay(),))

    await workshop.run(SCRIPT, [agent_task()], during=watched)
    assert workshop.only.stage == Stage.COMPLETED
    assert len(heard) == 6 and "_BrokenDisplay" in heard[0]


async def test_traces_that_could_not_be_written_are_not_referred_to(workshop: Workshop) -> None:
    async def in_the_way(node: Node, source: TaskFileSource) -> None:
        (node.paths.session("t-0").traces / "x").mkdir(parents=True)
        await node.serve(source)

    await workshop.run(SCRIPT, [agent_task(task_id="t")], during=in_the_way)
    assert workshop.only.failure and workshop.only.failure.where == "store"
    assert workshop.only.traces is None


class _Handing:
    """A source of sessions that does not journal, and keeps what is reported."""

    def __init__(self, tasks: Sequence[TaskRequest]) -> None:
        self.results: list[SessionResult] = []
        self._source = TaskFileSource(tasks, self._keep)
        self.lease = self._source.lease
        self.report = self._source.report

    async def _keep(self, result: SessionResult, _: Trajectory | None) -> None:
        self.results.append(result)


async def test_a_session_cancelled_before_its_first_step_still_reports(tmp_path: Path) -> None:
    source = _Handing([shell_task("true", task_id="t", num_samples=3)])
    services: Any = Services(slots=None, policy=PolicyGate(), paths=RunPaths.create(tmp_path))  # type: ignore[arg-type]
    pipeline = Pipeline(PoolConfig(ready=1), services, source)
    found: list[bool] = []
    lease = source.lease

    async def lease_and_cancel(room: int) -> list[Lease]:
        leases = await lease(room)
        for one in leases:
            asyncio.get_running_loop().call_soon(
                lambda session_id=one.session.session_id: found.append(pipeline.cancel(session_id))
            )
        return leases

    source.lease = lease_and_cancel
    async with hang_limit():
        await pipeline.serve()
    assert found == [True, True, True]
    ended = sorted((r.session_id, r.stage) for r in source.results)
    assert ended == [(f"t-{n}", Stage.CANCELLED) for n in range(3)]


async def test_sessions_leased_at_the_moment_of_a_cancel_are_reported(tmp_path: Path) -> None:
    source = _Handing([shell_task("true", task_id="t", num_samples=4)])
    services: Any = Services(slots=None, policy=PolicyGate(), paths=RunPaths.create(tmp_path))  # type: ignore[arg-type]
    async with await Journal.open(tmp_path / "journal.db") as journal:
        pipeline = Pipeline(PoolConfig(ready=2), services, JournalledSource(source, journal))
        serving = asyncio.create_task(pipeline.serve())
        await asyncio.sleep(0)  # it has leased and waits for the journal
        serving.cancel()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert sorted(r.session_id for r in source.results) == await journal.session_ids() == ["t-0", "t-1"]
        assert {r.stage for r in source.results} == {Stage.CANCELLED}


async def test_a_session_may_be_cancelled_again_while_it_ends(workshop: Workshop) -> None:
    async def cancel_twice(node: Node, source: TaskFileSource) -> None:
        serving = asyncio.create_task(node.serve(source))
        engine: Any = node.engine
        await until(lambda: engine.requests)
        for _ in range(20):
            serving.cancel()
            await asyncio.sleep(0.001)
        with pytest.raises(asyncio.CancelledError):
            await serving

    await workshop.run(SCRIPT, [agent_task(task_id="t")], during=cancel_twice)
    assert workshop.only.stage == Stage.CANCELLED
    assert workshop.leftovers() == []


async def test_results_that_cannot_be_reported_are_raised_at_the_end(workshop: Workshop) -> None:
    async def refuse(*_: Any) -> None:
        raise OSError("the trainer is gone")

    async def unheard(node: Node, _: TaskFileSource) -> None:
        with pytest.raises(ExceptionGroup, match="could not be reported"):
            await node.serve(TaskFileSource([agent_task()], refuse))

    await workshop.run(SCRIPT, [], during=unheard)


async def test_a_node_cancelled_while_it_starts_leaves_no_server(smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    engine = ScriptedEngine(smollm2._vocabulary, [])  # pyright: ignore[reportPrivateUsage]

    async def bring_up() -> None:
        async with open_node(Config(), RunPaths.create(tmp_path), engine=engine, renderer=smollm2):
            raise AssertionError("it was cancelled before")

    starting = asyncio.create_task(bring_up())
    before = asyncio.all_tasks()
    await until(lambda: asyncio.all_tasks() - before)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert asyncio.all_tasks() <= before
