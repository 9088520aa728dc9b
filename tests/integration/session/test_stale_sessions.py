"""Sessions of one node that live through policy updates, without any server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from workshop import AGENT, WRITE, Workshop, agent_task, shell_task

from polar.data.source import TaskFileSource
from polar.node import Node
from polar.testing import ScriptedEngine, ScriptedReply
from polar.types import Policy, Stage
from waiting import hang_limit, until

SCRIPT = [f"I write it. {WRITE}", "Done."]
CANCEL = {"max_updates": 0, "action": "cancel"}
MARK = {"max_updates": 0, "action": "mark"}


def beside(work: Callable[[Node], Awaitable[None]]) -> Callable[[Node, TaskFileSource], Awaitable[None]]:
    async def during(node: Node, source: TaskFileSource) -> None:
        serving = asyncio.create_task(node.serve(source))
        await work(node)
        async with hang_limit():
            await serving

    return during


def engine_of(node: Node) -> ScriptedEngine:
    assert isinstance(node.engine, ScriptedEngine)
    return node.engine


def held(folder: Path, name: str = "t") -> tuple[str, Path, Path]:
    here, go = folder / f"{name}.here", folder / f"{name}.go"
    return f"{AGENT[0]} {AGENT[1]}; touch {here}; while [ ! -e {go} ]; do sleep 0.05; done", here, go


async def test_only_those_that_are_too_old_are_broken_off(workshop: Workshop, tmp_path: Path) -> None:
    command, here, go = held(tmp_path)
    tasks = [
        shell_task(command.replace("t.here", f"{name}.here"), task_id=name, staleness=staleness)
        for name, staleness in (("old", CANCEL), ("marked", MARK), ("free", None))
    ]

    async def update(node: Node) -> None:
        await until(lambda: all((tmp_path / f"{task.task_id}.here").exists() for task in tasks))
        node.gate.set(Policy(version="v1", updates=1))
        await until(lambda: "old-0" in workshop.results)
        assert "marked-0" not in workshop.results
        go.touch()

    node = await workshop.run(SCRIPT, tasks, during=beside(update))
    told = {name: (r.stage, r.stale, r.policy_updates) for name, r in workshop.results.items()}
    assert told == {
        "old-0": (Stage.CANCELLED, True, 1),
        "marked-0": (Stage.COMPLETED, True, 1),
        "free-0": (Stage.COMPLETED, False, 1),
    }
    assert workshop.results["old-0"].traces and workshop.results["old-0"].score is None
    assert [node.gate.updates_of(session_id) for session_id in workshop.results] == [0, 0, 0], "all are forgotten"
    assert workshop.leftovers() == [] and not here.exists()


async def test_a_session_in_the_middle_of_its_verdict_is_broken_off_too(
    workshop: Workshop, tmp_path: Path
) -> None:
    judged = tmp_path / "judged"
    slow = {"name": "test_on_output", "options": {"command": f"touch {judged}; sleep 600"}}

    async def update(node: Node) -> None:
        await until(judged.exists)
        node.gate.set(Policy(version="v1"))

    await workshop.run(SCRIPT, [agent_task(evaluator=slow, staleness=CANCEL)], during=beside(update))
    result = workshop.only
    assert (result.stage, result.stale, result.score) == (Stage.CANCELLED, True, None)
    assert workshop.leftovers() == []


async def test_what_failed_before_is_not_why_it_ended(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy failure makes a session a fair sample; one that was broken off is none."""
    from polar.session import pipeline

    judged = asyncio.Event()

    async def slowly(_: object) -> None:
        judged.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(pipeline, "judge", slowly)
    task = shell_task(f"{AGENT[0]} {AGENT[1]}; exit 3", staleness=CANCEL)

    async def update(node: Node) -> None:
        async with hang_limit():
            await judged.wait()
        node.gate.set(Policy(version="v1"))
        node.gate.set(Policy(version="v2"))

    await workshop.run(SCRIPT, [task], during=beside(update))
    failure = workshop.only.failure
    assert failure and (failure.where, failure.type, failure.agent) == ("policy", "Stale", False)
    assert workshop.only.exit_code == 3 and workshop.only.policy_updates >= 1


@pytest.mark.parametrize("staleness", [CANCEL, MARK])
async def test_an_update_after_the_end_of_its_stages_makes_nothing_old(
    workshop: Workshop, staleness: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from polar.session import pipeline

    nodes: list[Node] = []
    write = pipeline.write

    async def update_and_write(live: object) -> None:
        nodes[0].gate.set(Policy(version="v1"))
        await write(live)  # type: ignore[arg-type]

    async def during(node: Node, source: TaskFileSource) -> None:
        nodes.append(node)
        await node.serve(source)

    monkeypatch.setattr(pipeline, "write", update_and_write)
    await workshop.run(SCRIPT, [agent_task(staleness=staleness)], during=during)
    result = workshop.only
    assert (result.stage, result.stale, result.policy_updates) == (Stage.COMPLETED, False, 0)


async def test_updates_in_the_middle_of_a_reply_are_counted(workshop: Workshop) -> None:
    async def update(node: Node) -> None:
        await until(lambda: engine_of(node).active)
        for version in ("v1", "v2"):
            node.gate.set(Policy(version=version))
        assert node.gate.under_way == 1
        engine_of(node).release()

    script = [ScriptedReply(text=SCRIPT[0], block_after=2), "Done."]
    await workshop.run(script, [agent_task(staleness={"max_updates": 2})], during=beside(update))
    result = workshop.only
    assert (result.stage, result.stale, result.policy_updates) == (Stage.COMPLETED, False, 2)


async def test_a_session_without_calls_has_seen_no_update(workshop: Workshop, tmp_path: Path) -> None:
    here, go = tmp_path / "here", tmp_path / "go"

    async def update(node: Node) -> None:
        await until(here.exists)
        node.gate.set(Policy(version="v1"))
        go.touch()

    command = f"touch {here}; while [ ! -e {go} ]; do sleep 0.05; done"
    await workshop.run([], [shell_task(command, staleness=CANCEL)], during=beside(update))
    assert (workshop.only.stage, workshop.only.policy_updates) == (Stage.FAILED, 0)
    assert workshop.only.failure and workshop.only.failure.type == "NoCalls"
