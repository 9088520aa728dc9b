"""Sessions that are in their stage for too long are named with the reason; those that only wait are not."""

from __future__ import annotations

from typing import Any

from desk import Desk

from polar.server.overview.snapshot import snapshot
from polar.server.records import cancel, leases, policy
from polar.types import Heartbeat, HeldSession, Lease, Overview, PolicyChange, Stage

BUDGETS = {"init_s": 100, "run_s": 200, "wait_s": 1000, "postrun_s": 50, "evaluator_init_s": 30}


async def held(desk: Desk, stage: Stage, **registration: Any) -> tuple[str, Lease]:
    await desk.submit(budgets=BUDGETS)
    node = await desk.register(**registration)
    lease = await desk.lease_one(node)
    if stage is not Stage.QUEUED:
        await desk.beat(node, lease, stage=stage)
    return node, lease


async def reasons(desk: Desk) -> list[str]:
    found: Overview = await desk.state.read(snapshot, desk.clock(), desk.state.alive_since)
    return [each.why for each in found.stuck]


async def why_after(desk: Desk, seconds: float) -> list[str]:
    desk.clock.advance(seconds)
    return await reasons(desk)


async def test_a_stage_may_take_its_budget_and_some_more(desk: Desk) -> None:
    await held(desk, Stage.INIT)
    assert await why_after(desk, 159) == []
    assert await why_after(desk, 41) == ["INIT for 200 s; budgets.init_s is 100"]


async def test_postrun_has_time_for_files_and_for_an_evaluators_runtime(desk: Desk) -> None:
    await held(desk, Stage.POSTRUN)
    assert await why_after(desk, 189) == []
    [why] = await why_after(desk, 11)
    assert why == "POSTRUN for 200 s; budgets.postrun_s is 50, evaluator_init_s 30"


async def test_waiting_for_the_model_is_not_running(desk: Desk) -> None:
    node, lease = await held(desk, Stage.RUNNING)

    async def waited(seconds: float) -> None:
        one = HeldSession(session_id="add-0", attempt=1, stage=Stage.RUNNING, waited_s=seconds)
        await desk.state.change(leases.heartbeat, node, Heartbeat(sessions=(one,)))

    assert await why_after(desk, 300) == ["RUNNING for 300 s; budgets.run_s is 200"]
    await waited(250)
    assert await reasons(desk) == []
    desk.clock.advance(300)
    assert await reasons(desk) == ["RUNNING for 600 s, 250 s of it waiting for the model; budgets.run_s is 200"]
    await waited(1070)
    assert await reasons(desk) == ["waited 1070 s for the model; budgets.wait_s is 1000"]
    assert lease.session.attempt == 1


async def test_a_session_is_ready_for_too_long_if_its_node_could_run_it(desk: Desk) -> None:
    await held(desk, Stage.READY, slots=1)
    [why] = await why_after(desk, 61)
    assert why == "READY for 61 s, though its node has a free run slot"


async def test_a_session_that_waits_for_a_busy_node_is_not_stuck(desk: Desk) -> None:
    await desk.submit(num_samples=2, budgets=BUDGETS)
    node = await desk.register(slots=1)
    runs, ready = await desk.lease(node, 2)
    await desk.beat(node, runs)
    await desk.beat(node, ready, stage=Stage.READY)
    assert await why_after(desk, 250) == []
    _, why = await why_after(desk, 250)
    assert why == "READY for 500 s; no run slot came free in twice budgets.run_s, which is 200"
    await desk.state.change(policy.put, PolicyChange(paused=True))
    assert len(await reasons(desk)) == 1, "while generation is paused, run slots do not come free"


async def test_a_lease_that_never_begins(desk: Desk) -> None:
    await held(desk, Stage.QUEUED)
    assert await why_after(desk, 255) == []
    assert await why_after(desk, 45) == ["leased 300 s ago and not begun; budgets.init_s is 100"]


async def test_a_cancel_that_nothing_follows(desk: Desk) -> None:
    await held(desk, Stage.RUNNING)
    await desk.state.change(cancel.cancel, "session", "add-0")
    assert await why_after(desk, 100) == []
    assert await why_after(desk, 20) == ["a client asked to cancel it 120 s ago, and it has not ended"]


async def test_a_session_in_the_queue_only_waits(desk: Desk) -> None:
    await desk.submit(budgets=BUDGETS)
    assert await why_after(desk, 100_000) == []
