"""A run without a server: sessions wait for an engine that is gone, within bounds, and run again here."""

from __future__ import annotations

import asyncio
from typing import Any

from workshop import WRITE, Workshop, agent_task

from polar.data.source import TaskFileSource
from polar.node import Node
from polar.node.probes import PROBE
from polar.testing import ScriptedEngine, ScriptedReply
from polar.types import Stage, TokenIds
from waiting import hang_limit, until

GONE = ScriptedReply(ids=(), error="the engine is gone")


class Script:
    """Writes the file and is done, in whichever attempt; or says that the engine is gone."""

    def __init__(self, workshop: Workshop) -> None:
        self._vocabulary = workshop.renderer._vocabulary  # pyright: ignore[reportPrivateUsage]
        self.gone = False

    def __call__(self, _: int, prompt_ids: TokenIds) -> Any:
        if self.gone:
            return GONE
        return "Done." if "echo hello" in self._vocabulary.decode(prompt_ids) else WRITE


async def test_sessions_wait_for_an_engine_that_comes_back(workshop: Workshop) -> None:
    script = Script(workshop)
    script.gone = True
    workshop.node = {"probe_pause_s": 0.05}

    async def outage(node: Node, source: TaskFileSource) -> None:
        serving = asyncio.create_task(node.serve(source))
        await until(lambda: node.health.sick)
        engine: Any = node.engine
        probes = len(_probes(engine))
        await until(lambda: len(_probes(engine)) > probes + 2)
        assert not workshop.results
        script.gone = False
        async with hang_limit():
            await serving

    await workshop.run(script, [agent_task(task_id="t", num_samples=10)], during=outage, running=3)
    assert len(workshop.results) == 10
    assert {r.stage for r in workshop.results.values()} == {Stage.COMPLETED}
    attempts = [a for r in workshop.results.values() for a in r.attempts]
    assert attempts and {(a.where, a.counted) for a in attempts} == {("engine", False)}
    assert workshop.leftovers() == []


def _probes(engine: ScriptedEngine) -> list[Any]:
    return [seen for seen in engine.requests if seen.request.session_id == PROBE]


async def test_an_engine_that_does_not_come_back_fails_the_sessions_in_the_end(workshop: Workshop) -> None:
    script = Script(workshop)
    script.gone = True
    workshop.node = {"outage_s": 0.2, "probe_pause_s": 0.05}
    async with hang_limit():
        await workshop.run(script, [agent_task(task_id="t", num_samples=3)])
    assert {r.stage for r in workshop.results.values()} == {Stage.FAILED}
    assert {r.failure.where for r in workshop.results.values() if r.failure} == {"engine"}


async def test_attempts_on_an_engine_that_looks_healthy_are_bounded(workshop: Workshop) -> None:
    """The first three calls of the session fail; the probes between them are answered."""
    script, failures = Script(workshop), 0
    workshop.node = {"max_failures": 3}

    def flaky(turn: int, prompt_ids: TokenIds) -> Any:
        nonlocal failures
        probe = len(prompt_ids) == 2
        failures += not probe
        return GONE if not probe and failures <= 3 else script(turn, prompt_ids)

    await workshop.run(flaky, [agent_task(task_id="t")])
    result = workshop.only
    assert (result.stage, result.attempt) == (Stage.FAILED, 3)
    assert [(a.attempt, a.where, a.counted) for a in result.attempts] == [(1, "engine", True), (2, "engine", True)]


async def test_a_session_that_recovers_says_what_it_went_through(workshop: Workshop) -> None:
    script, failures = Script(workshop), 0
    workshop.node = {}

    def flaky(turn: int, prompt_ids: TokenIds) -> Any:
        nonlocal failures
        probe = len(prompt_ids) == 2
        failures += not probe
        return GONE if not probe and failures <= 1 else script(turn, prompt_ids)

    node = await workshop.run(flaky, [agent_task(task_id="t")])
    result = workshop.only
    assert (result.stage, result.attempt, len(result.attempts)) == (Stage.COMPLETED, 2, 1)
    assert result.attempts[0].why == "the engine is gone" and result.attempts[0].node
    assert node.health.sick is None
