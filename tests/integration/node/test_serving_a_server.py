"""Nodes at work for a real rollout server: leases, hand-backs, losses, cancellation and pauses."""

from __future__ import annotations

import asyncio

import pytest
from served_node import AGENT, Service, agent_task, results_of

from node_abilities import able
from polar.node.uplink import LeaseRefused, Uplink, upload_of
from polar.types import LeaseRequest, Registration, SessionResult, Stage
from waiting import hang_limit, until


async def test_a_task_comes_back_as_results_with_trajectories_and_calls(patient: Service) -> None:
    await patient.add_node()
    await patient.client.submit(agent_task(task_id="t", num_samples=3))
    results = await results_of(patient, "t")
    assert sorted(results) == ["t-0", "t-1", "t-2"]
    assert {(r.stage, r.attempt) for r in results.values()} == {(Stage.COMPLETED, 1)}
    upload = await patient.client.upload("t-1")
    trajectory = await patient.client.trajectory("t-1")
    assert [call.received for call in upload.calls] == [True, True]
    assert upload.trajectory == trajectory and trajectory.traces[0].reward == 1.0
    assert SessionResult.model_validate_json(upload.result) == results["t-1"]


async def test_logs_and_kept_files_come_with_the_result(patient: Service) -> None:
    await patient.add_node()
    command = f"{AGENT} && echo kept > out.txt && echo said"
    await patient.client.submit(agent_task(command, task_id="t", keep={"artifacts": ["out.txt"]}))
    await results_of(patient, "t")
    files = {file.path: file.content for file in (await patient.client.upload("t-0")).files}
    assert files["artifacts/out.txt"] == b"kept\n"
    assert files["logs/harness.stdout"].endswith(b"said\n")


async def test_the_server_sees_the_stage_of_a_session_that_runs(patient: Service) -> None:
    node = await patient.add_node()
    command, here, go = patient.held_up("t")
    await patient.client.submit(agent_task(command, task_id="t"))
    await until(here.exists)
    async with hang_limit():
        while (await patient.client.session("t-0")).stage is not Stage.RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    (status,) = await patient.client.nodes()
    assert status.alive and status.sessions == ("t-0",) and status.slots == node.node.config.pools.running
    go.touch()
    assert (await results_of(patient, "t"))["t-0"].stage is Stage.COMPLETED


async def test_a_node_that_stops_hands_its_sessions_back(patient: Service) -> None:
    first = await patient.add_node()
    command, here, go = patient.held_up("t")
    await patient.client.submit(agent_task(command, task_id="t", num_samples=2))
    await until(here.exists)
    await first.leave()
    assert await patient.client.nodes() == []
    status = await patient.client.session("t-0")
    assert (status.stage, status.attempt, status.node_id) == (Stage.QUEUED, 2, None)
    assert list(first.node.paths.root.glob("sessions/*/place")) == []
    go.touch()
    await patient.add_node()
    results = await results_of(patient, "t")
    assert {(r.stage, r.attempt) for r in results.values()} == {(Stage.COMPLETED, 2)}


async def test_a_session_that_just_finished_is_uploaded_by_a_node_that_stops(patient: Service) -> None:
    node = await patient.add_node()
    await patient.client.submit(agent_task(task_id="t"))
    async with hang_limit():
        while not (await node.node.journal.results()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await node.leave()
    assert (await results_of(patient, "t"))["t-0"].attempt == 1


async def test_what_a_lost_node_held_runs_again_and_its_late_result_is_dropped(service: Service) -> None:
    first = await service.add_node()
    command, here, go = service.held_up("t")
    await service.client.submit(agent_task(command, task_id="t"))
    await until(here.exists)
    first.uplink.cut()
    await service.add_node()
    async with hang_limit():
        while (await service.client.session("t-0")).attempt == 1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    go.touch()
    result = (await results_of(service, "t"))["t-0"]
    assert (result.stage, result.attempt) == (Stage.COMPLETED, 2)
    await until(lambda: not list(first.node.paths.root.glob("sessions/*/place")))
    first.uplink.mend()
    await first.leave()
    assert (await service.client.session("t-0")).result == result


async def test_a_lost_node_that_comes_back_breaks_its_sessions_off(service: Service) -> None:
    first = await service.add_node()
    command, here, go = service.held_up("t")
    await service.client.submit(agent_task(command, task_id="t"))
    await until(here.exists)
    first.uplink.cut()
    async with hang_limit():
        while (await service.client.session("t-0")).attempt == 1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    here.unlink()
    first.uplink.mend()  # the same node gets it again, when the old attempt has ended
    await until(here.exists)
    go.touch()
    result = (await results_of(service, "t"))["t-0"]
    assert (result.stage, result.attempt) == (Stage.COMPLETED, 2)
    assert (await first.node.journal.lease("t-0")).session.attempt == 2


async def test_the_upload_of_an_old_attempt_is_refused(service: Service) -> None:
    await service.client.submit(agent_task(task_id="t"))
    async with Uplink(service.server.base_url, "node") as uplink:
        await uplink.register(Registration(name="silent", slots=1, abilities=able()))
        (lease,) = (await uplink.lease(LeaseRequest(room=1))).leases
        async with hang_limit():
            while (await service.client.session("t-0")).attempt == 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        session = lease.session
        late = SessionResult(
            session_id=session.session_id, task_id=session.task_id, index=0, attempt=1, stage=Stage.COMPLETED
        )
        with pytest.raises(LeaseRefused):
            await uplink.upload(session.session_id, 1, upload_of(late, None, ()))


async def test_a_cancel_reaches_a_session_that_runs(patient: Service) -> None:
    await patient.add_node()
    command, here, _ = patient.held_up("t")
    await patient.client.submit(agent_task(command, task_id="t"))
    await until(here.exists)
    assert await patient.client.cancel_session("t-0") == 1
    result = (await results_of(patient, "t"))["t-0"]
    assert (result.stage, result.attempt) == (Stage.CANCELLED, 1)
    assert result.statistics.calls == 2, "what was captured is kept"
    assert (await patient.client.trajectory("t-0")).traces


async def test_a_pause_holds_calls_and_they_go_on_under_the_new_version(patient: Service) -> None:
    served = await patient.add_node()
    await patient.client.set_policy_version("1")
    await patient.client.submit(agent_task(task_id="before"))
    await results_of(patient, "before")
    await patient.client.pause()
    await until(lambda: served.node.gate.policy.paused)
    seen = len(served.engine.requests)
    await patient.client.submit(agent_task(task_id="after"))
    async with hang_limit():
        while (await patient.client.session("after-0")).stage is not Stage.RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)  # time enough for the harness to call
    assert len(served.engine.requests) == seen
    await patient.client.set_policy_version("2")
    await patient.client.resume()
    assert (await results_of(patient, "after"))["after-0"].stage is Stage.COMPLETED
    for name, version in (("before-0", "1"), ("after-0", "2")):
        assert {call.policy_version for call in (await patient.client.upload(name)).calls} == {version}


async def test_what_ended_while_the_server_was_away_is_delivered(patient: Service) -> None:
    served = await patient.add_node()
    command, here, go = patient.held_up("t")
    await patient.client.submit(agent_task(command, task_id="t"))
    await until(here.exists)
    served.uplink.cut()
    go.touch()
    await until(lambda: not list(served.node.paths.root.glob("sessions/*/place")))
    served.uplink.mend()
    result = (await results_of(patient, "t"))["t-0"]
    assert result.stage is Stage.COMPLETED and result.attempt in (1, 2)


async def test_two_nodes_share_the_work(patient: Service) -> None:
    nodes = [await patient.add_node(init=1, ready=1, running=1) for _ in range(2)]
    await patient.client.submit(agent_task(f"{AGENT}; sleep 0.2", task_id="t", num_samples=6))
    assert len(await results_of(patient, "t")) == 6
    assert all([await served.node.journal.session_ids() for served in nodes])
