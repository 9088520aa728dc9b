"""An evaluator's own runtime is there when the harness ends, holds nothing of the agent's, and leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel
from small_agent import CONTAINED, task_in
from workshop import WRITE, Workshop, agent_task, shell_task

from polar.data.source import TaskFileSource
from polar.errors import RuntimeFailure
from polar.evaluators.base import Evidence, RuntimeRequest
from polar.node import Node
from polar.runtimes.base import Command, SessionFolders
from polar.runtimes.local.runtime import LocalOptions, LocalRuntime
from polar.runtimes.options import Capabilities
from polar.session import own_runtime
from polar.types import Score, Stage, Strict, TaskRequest
from waiting import hang_limit, until

SCRIPT = [f"I write it. {WRITE}", "Done."]
SEEN: list[str] = []
"""What happened, in order."""


class SealedOptions(LocalOptions):
    """As of a runtime that contains its session."""

    capabilities: ClassVar[Capabilities] = Capabilities(networks=("open",), contains=("files", "processes"))


class SealedRuntime(LocalRuntime):
    Options: type[LocalOptions] = SealedOptions  # pyright: ignore[reportIncompatibleVariableOverride]
    fails: ClassVar[bool] = False

    async def start(self, folders: SessionFolders) -> None:
        if folders.session_id.endswith(".evaluator"):
            if self.fails:
                raise RuntimeFailure("the machine room is locked")
            SEEN.append("own runtime")
        await super().start(folders)


class Comparing:
    """Rewards a file that the agent's workspace has and its own has not."""

    Options: type[BaseModel] = Strict

    def __init__(self, options: Strict) -> None:
        SEEN.append("made")

    def wants_runtime(self, task: TaskRequest) -> RuntimeRequest:
        return RuntimeRequest()

    async def evaluate(self, evidence: Evidence) -> Score:
        SEEN.append("evaluate")
        assert evidence.own_runtime is not None
        own = await evidence.own_runtime.get("given.txt")
        agents = await evidence.runtime.get("answer.txt")
        try:
            await evidence.own_runtime.get("answer.txt")
        except FileNotFoundError:
            return Score(reward=1.0 if (own, agents) == (b"given", b"hello\n") else 0.0)
        return Score(reward=0.0)


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(own_runtime, "PAUSE_S", 0.0)
    SEEN.clear()
    yield


def judged(runtime: str = f"{__name__}:SealedRuntime", **fields: Any) -> dict[str, Any]:
    evaluator = {"name": f"{__name__}:Comparing"}
    return {"task_id": "t", "runtime": runtime, "evaluator": evaluator, "files": {"given.txt": "given"}, **fields}


def leftovers(workshop: Workshop) -> list[str]:
    return workshop.leftovers() + [str(path) for path in workshop.paths.root.glob("sessions/*/evaluator-place")]


async def test_it_starts_while_the_agent_works(workshop: Workshop) -> None:
    """The harness ends only when the evaluator's runtime is there."""
    place = workshop.paths.session("t-0").evaluator_place
    agent = " ".join(agent_task().harness.options["argv"])
    task = shell_task(f"until [ -e {place}/work/given.txt ]; do sleep 0.02; done; {agent}", **judged())
    async with hang_limit():
        await workshop.run(SCRIPT, [task])
    assert workshop.only.reward == 1.0 and SEEN == ["made", "own runtime", "evaluate"]
    assert leftovers(workshop) == []


@pytest.mark.parametrize("how", [{"prewarm": False}, {}])
async def test_switched_off_or_beside_an_agent_that_is_not_contained_it_starts_in_postrun(
    workshop: Workshop, how: dict[str, Any]
) -> None:
    place = workshop.paths.session("t-0").evaluator_place
    agent = " ".join(agent_task().harness.options["argv"])
    runtime = judged()["runtime"] if how else "local"
    task = shell_task(f"{agent}; test ! -e {place}", **judged(runtime=runtime))
    await workshop.run(SCRIPT, [task], **how)
    assert workshop.only.reward == 1.0 and SEEN[0] == "made" and SEEN[-1] == "evaluate"
    assert leftovers(workshop) == []


async def test_a_failed_harness_ends_it(workshop: Workshop) -> None:
    place = workshop.paths.session("t-0").evaluator_place
    agent = " ".join(agent_task().harness.options["argv"])
    task = shell_task(f"until [ -e {place} ]; do sleep 0.02; done; {agent}; exit 3", **judged())
    async with hang_limit():
        await workshop.run(SCRIPT, [task])
    assert workshop.only.failure and workshop.only.failure.type == "HarnessExit" and workshop.only.reward == 0.0
    assert "evaluate" not in SEEN and leftovers(workshop) == []


async def test_a_cancelled_session_ends_it(workshop: Workshop) -> None:
    async def during(node: Node, source: TaskFileSource) -> None:
        pipeline = node.pipeline(source)
        serving = asyncio.create_task(pipeline.serve())
        await until(lambda: "own runtime" in SEEN)
        pipeline.cancel("t-0")
        async with hang_limit():
            await serving

    await workshop.run(SCRIPT, [shell_task("sleep 600", **judged())], during)
    assert workshop.only.stage == Stage.CANCELLED and leftovers(workshop) == []


class EndlessStop(SealedRuntime):
    async def stop(self) -> None:
        SEEN.append("stop")
        await asyncio.Event().wait()


async def test_two_runtimes_that_do_not_stop_have_a_deadline_each(workshop: Workshop) -> None:
    task = shell_task("true", **judged(f"{__name__}:EndlessStop", budgets={"postrun_s": 0.5}))
    async with hang_limit():
        await workshop.run(SCRIPT, [task])
    assert workshop.only.failure and not workshop.only.failure.agent
    assert SEEN.count("stop") == 2


async def test_one_that_cannot_start_is_no_fault_of_the_agent(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SealedRuntime, "fails", True)
    await workshop.run(SCRIPT, [agent_task(**judged())])
    failure = workshop.only.failure
    assert failure and (failure.where, failure.agent) == ("evaluator", False) and workshop.only.reward is None
    assert "tried 3 times: the machine room is locked" in failure.message
    assert workshop.only.statistics.trainable_tokens > 0 and leftovers(workshop) == []


async def test_time_spent_waiting_for_it_is_not_postruns(workshop: Workshop) -> None:
    """Preparing it takes longer than all of POSTRUN may."""
    prepare = [{"run": "case $PWD in *evaluator-place*) sleep 3;; esac"}]
    budgets = {"postrun_s": 2.5, "evaluator_init_s": 60.0}
    await workshop.run(SCRIPT, [agent_task(**judged(runtime="local", prepare=prepare, budgets=budgets))])
    assert workshop.only.reward == 1.0, workshop.only.failure


class WithoutTheAgent:
    """Rewards a runtime of its own that has the task's file and no network, and not what the agent left."""

    Options: type[BaseModel] = Strict

    def __init__(self, options: Strict) -> None:
        pass

    def wants_runtime(self, task: TaskRequest) -> RuntimeRequest:
        return RuntimeRequest()

    async def evaluate(self, evidence: Evidence) -> float:
        assert evidence.own_runtime is not None
        look = 'test -e given.txt && test ! -e answer.txt && test "$(wc -l </proc/net/route)" -le 1'
        finished = await evidence.own_runtime.exec(Command(("sh", "-c", look)))
        return float(finished.exit_code == 0)


@pytest.mark.check
@pytest.mark.parametrize("prewarm", [True, False])
@pytest.mark.parametrize("runtime", CONTAINED)
async def test_in_every_runtime(workshop: Workshop, runtime: str, prewarm: bool) -> None:
    evaluator = {"name": f"{__name__}:WithoutTheAgent"}
    files = {"given.txt": "given"}
    good = await task_in(runtime, "true", task_id="good", evaluator=evaluator, files=files)
    bad = await task_in(runtime, "exit 3", task_id="bad", evaluator=evaluator, files=files)
    await workshop.run(["Done."], [good, bad], prewarm=prewarm)
    assert {name: result.reward for name, result in workshop.results.items()} == {"good-0": 1.0, "bad-0": 0.0}
    assert leftovers(workshop) == []
