"""Weight updates under running sessions: a drain that really waits, and sessions that grow too old."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest
from served_node import WRITE, ServedNode, Service, agent_task, results_of

from polar.client import NotDrained, SyncPolarClient
from polar.testing import ScriptedReply
from polar.types import SessionResult, Stage
from waiting import hang_limit, until


def bound(max_updates: int, action: str) -> dict[str, object]:
    return {"max_updates": max_updates, "action": action}


async def update(service: Service, version: str, *nodes: ServedNode) -> None:
    await service.client.set_policy_version(version)
    await until(lambda: all(served.node.gate.policy.version == version for served in nodes))


async def held_session(service: Service, **fields: object) -> tuple[ServedNode, object]:
    """A session that has made its two calls under version 1 and waits to be let go."""
    served = await service.add_node()
    await update(service, "1", served)
    command, here, go = service.held_up("t")
    await service.client.submit(agent_task(command, task_id="t", **fields))
    await until(here.exists)
    return served, go


class TestTheBound:
    async def test_a_session_that_is_too_old_is_broken_off_at_once(self, patient: Service) -> None:
        served, _ = await held_session(patient, staleness=bound(1, "cancel"))
        await update(patient, "2", served)
        assert (await patient.client.session("t-0")).result is None, "one update is allowed"
        await update(patient, "3", served)
        result = (await results_of(patient, "t"))["t-0"]
        assert (result.stage, result.stale, result.policy_updates) == (Stage.CANCELLED, True, 2)
        failure = result.failure
        assert failure and (failure.where, failure.type, failure.agent) == ("policy", "Stale", False)
        assert "'1'" in failure.message and "'3'" in failure.message and "bound: 1" in failure.message
        assert result.score is None, "it is not judged"
        assert result.statistics.calls == 2 and (await patient.client.trajectory("t-0")).traces, (
            "what it has is kept"
        )
        assert (result.attempt, (await patient.client.session("t-0")).attempt) == (1, 1), "and it runs no more"
        assert list(served.node.paths.root.glob("sessions/*/place")) == []

    async def test_a_marked_session_goes_on_and_its_result_says_so(self, patient: Service) -> None:
        served, go = await held_session(patient, staleness=bound(1, "mark"))
        for version in ("2", "3"):
            await update(patient, version, served)
        go.touch()  # type: ignore[attr-defined]
        result = (await results_of(patient, "t"))["t-0"]
        assert (result.stage, result.failure) == (Stage.COMPLETED, None)
        assert (result.stale, result.policy_updates) == (True, 2)
        assert result.score and result.score.reward == 1.0

    @pytest.mark.parametrize("staleness", [None, bound(1, "mark"), bound(1, "cancel")])
    async def test_within_the_bound_or_without_one_it_is_only_counted(
        self, patient: Service, staleness: dict[str, object] | None
    ) -> None:
        served, go = await held_session(patient, staleness=staleness)
        await patient.client.set_policy_version("1")
        await update(patient, "2", served)
        go.touch()  # type: ignore[attr-defined]
        result = (await results_of(patient, "t"))["t-0"]
        assert (result.stage, result.stale, result.policy_updates) == (Stage.COMPLETED, False, 1)

    async def test_a_session_that_has_not_made_a_call_does_not_grow_old(self, patient: Service) -> None:
        served = await patient.add_node()
        await patient.client.pause(wait=True)
        await patient.client.submit(agent_task(task_id="t", staleness=bound(0, "cancel")))
        async with hang_limit():
            while (await patient.client.session("t-0")).stage is not Stage.RUNNING:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        for version in ("1", "2", "3"):
            await update(patient, version, served)
        await patient.client.resume()
        result = (await results_of(patient, "t"))["t-0"]
        assert (result.stage, result.stale, result.policy_updates) == (Stage.COMPLETED, False, 0)

    async def test_a_reply_that_is_being_sampled_is_kept_as_aborted(self, patient: Service) -> None:
        patient.last_reply = ScriptedReply(text="I never end.", block_after=3)
        served = await patient.add_node()
        await patient.client.submit(agent_task(task_id="t", staleness=bound(0, "cancel")))
        await until(lambda: served.engine.active and len(served.engine.requests) == 2)
        await update(patient, "1", served)
        result = (await results_of(patient, "t"))["t-0"]
        assert (result.stage, result.statistics.dropped) == (Stage.CANCELLED, {"aborted": 3})
        assert served.engine.active == 0 and served.node.gate.under_way == 0

    async def test_updates_that_came_while_the_line_was_cut_count_too(self, patient: Service) -> None:
        served, _ = await held_session(patient, staleness=bound(1, "cancel"))
        served.uplink.cut()
        await patient.client.set_policy_version("2")
        await patient.client.set_policy_version("3")
        served.uplink.mend()
        result = (await results_of(patient, "t"))["t-0"]
        assert (result.stage, result.policy_updates) == (Stage.CANCELLED, 2)


class TestDrain:
    async def test_it_waits_for_a_generation_that_runs(self, patient: Service) -> None:
        patient.first_reply = ScriptedReply(text=WRITE, block_after=2)
        served = await patient.add_node()
        await update(patient, "1", served)
        await patient.client.submit(agent_task(task_id="t"))
        await until(lambda: served.engine.active)
        pausing = asyncio.create_task(patient.client.pause(wait=True))
        async with hang_limit():
            while (drain := await patient.client.drain()).unheard or not drain.policy.paused:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (drain.generating, drain.done, pausing.done()) == (1, False, False)
        (node,) = await patient.client.nodes()
        assert (node.generating, node.heard) == (1, True)
        served.engine.release()
        async with hang_limit():
            assert (await pausing).paused
        assert served.engine.active == 0
        await patient.client.set_policy_version("2")
        assert len(served.engine.requests) == 1, "the next call waits"
        await patient.client.resume()
        assert (await results_of(patient, "t"))["t-0"].statistics.dropped == {}, "nothing was broken off"
        versions = [call.policy_version for call in (await patient.client.upload("t-0")).calls]
        assert versions == ["1", "2"]

    async def test_a_drain_that_takes_too_long_is_reported_and_stays_paused(self, patient: Service) -> None:
        patient.first_reply = ScriptedReply(text=WRITE, block_after=2)
        served = await patient.add_node()
        await patient.client.submit(agent_task(task_id="t"))
        await until(lambda: served.engine.active)
        with pytest.raises(NotDrained):
            await patient.client.pause(wait=True, timeout_s=0.3)
        assert (await patient.client.policy()).paused
        served.engine.release()
        await patient.client.pause(wait=True, timeout_s=60)
        await patient.client.resume()
        assert (await results_of(patient, "t"))["t-0"].stage is Stage.COMPLETED

    async def test_a_session_that_is_cancelled_no_longer_holds_it_up(self, patient: Service) -> None:
        patient.first_reply = ScriptedReply(text=WRITE, block_after=2)
        served = await patient.add_node()
        await patient.client.submit(agent_task(task_id="t"))
        await until(lambda: served.engine.active)
        pausing = asyncio.create_task(patient.client.pause(wait=True))
        await patient.client.cancel_task("t")
        async with hang_limit():
            await pausing
        assert (await results_of(patient, "t"))["t-0"].statistics.dropped == {"aborted": 2}

    async def test_a_node_that_is_away_is_waited_for(self, patient: Service) -> None:
        here, away = await patient.add_node(), await patient.add_node()
        await patient.client.pause(wait=True)
        await patient.client.resume()
        await until(lambda: not away.node.gate.policy.paused)
        away.uplink.cut()
        pausing = asyncio.create_task(patient.client.pause(wait=True))
        await until(lambda: here.node.gate.policy.paused)
        assert not away.node.gate.policy.paused and not pausing.done()
        away.uplink.mend()
        async with hang_limit():
            await pausing

    @pytest.mark.parametrize("holding", [True, False])
    async def test_one_that_does_not_come_back_is_not(self, service: Service, holding: bool) -> None:
        service.first_reply = ScriptedReply(text=WRITE, block_after=2)
        lost = await service.add_node()
        if holding:
            await service.client.submit(agent_task(task_id="t"))
            await until(lambda: lost.engine.active)
        lost.uplink.cut()
        async with hang_limit():
            await service.client.pause(wait=True)
        assert not lost.node.gate.policy.paused
        assert (await service.client.drain()).done
        if holding:
            assert (await service.client.session("t-0")).attempt == 2, "what it still samples is refused"
        lost.uplink.mend()

    async def test_a_node_that_stops_meanwhile_is_not_waited_for(self, patient: Service) -> None:
        patient.first_reply = ScriptedReply(text=WRITE, block_after=2)
        served = await patient.add_node()
        await patient.client.submit(agent_task(task_id="t"))
        await until(lambda: served.engine.active)
        pausing = asyncio.create_task(patient.client.pause(wait=True))
        await served.leave()
        async with hang_limit():
            await pausing
        assert (await patient.client.session("t-0")).attempt == 2

    async def test_without_nodes_there_is_nothing_to_wait_for(self, patient: Service) -> None:
        async with hang_limit():
            assert (await patient.client.pause(wait=True)).paused


async def test_the_trainers_snippet_of_the_policy_page(patient: Service) -> None:
    page = (Path(__file__).parents[3] / "docs" / "policy.md").read_text()
    (snippet,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    served = await patient.add_node()
    loaded: list[tuple[int, int]] = []
    names: dict[str, Any] = {"load_weights": lambda step: loaded.append((step, served.engine.active))}
    exec(compile(snippet, "docs/policy.md", "exec"), names)
    await patient.client.submit(agent_task(task_id="t", num_samples=4))

    def train() -> None:
        with SyncPolarClient(patient.server.base_url, "control") as client:
            for step in (1, 2, 3):
                names["update"](client, step)

    await asyncio.to_thread(train)
    assert loaded == [(1, 0), (2, 0), (3, 0)], "the weights change while nothing is generated"
    assert (await patient.client.policy()).version == "3" and not (await patient.client.policy()).paused
    results = await results_of(patient, "t")
    assert {result.stage for result in results.values()} == {Stage.COMPLETED}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.check) for seed in (1, 2))])
async def test_updates_in_a_row_leave_no_generation_across_and_no_session_behind(
    patient: Service, seed: int
) -> None:
    """A trainer that updates as fast as it can, while lines break: whenever the server reports that nothing is
    generated, nothing is, and every session gets its one result."""
    chance = random.Random(seed)
    nodes = [await patient.add_node(running=2) for _ in range(2)]
    bounds = [None, bound(0, "cancel"), bound(0, "mark"), bound(2, "cancel")]
    for number, staleness in enumerate(bounds):
        await patient.client.submit(agent_task(task_id=f"t{number}", num_samples=2, staleness=staleness))
    gathering = asyncio.create_task(results_of(patient, *(f"t{number}" for number in range(len(bounds)))))
    step = 0
    async with hang_limit():
        while not gathering.done():
            step += 1
            chosen = chance.choice(nodes)
            if chance.random() < 0.5:
                chosen.uplink.cut()
                asyncio.get_running_loop().call_later(chance.random() / 2, chosen.uplink.mend)
            await patient.client.pause(wait=True)
            assert [served.engine.active for served in nodes] == [0, 0]
            await patient.client.set_policy_version(step)
            await patient.client.resume()
            await asyncio.sleep(chance.random() / 2)
    results = (await gathering).values()
    assert {result.stage for result in results} <= {Stage.COMPLETED, Stage.CANCELLED}
    for result in results:
        assert _as_the_task_says(result), result
    for result in [result for result in results if result.stage is Stage.COMPLETED]:
        calls = (await patient.client.upload(result.session_id)).calls
        assert len({call.policy_version for call in calls}) <= result.policy_updates + 1


def _as_the_task_says(result: SessionResult) -> bool:
    """Task 0 has no bound, 1 and 3 are broken off, 2 is marked."""
    if result.task_id in ("t0", "t2"):
        return result.stage is Stage.COMPLETED and result.stale == (
            result.task_id == "t2" and result.policy_updates > 0
        )
    return result.stale == (result.stage is Stage.CANCELLED) == result.broken_off_stale
