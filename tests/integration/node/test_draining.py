"""A node that is stopped and drains: its sessions may end, it gets no more, and what does not end goes back."""

from __future__ import annotations

import logging

import pytest
from served_node import Service, agent_task, results_of

from polar.types import Stage
from waiting import hang_limit, until

NEVER_S = 10_000.0


async def test_sessions_end_where_they_run_and_others_wait(
    patient: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "polar.node")
    patient.node_settings = {"drain_s": NEVER_S}
    first = await patient.add_node(running=1, ready=1)
    command, here, go = patient.held_up("t")
    await patient.client.submit(agent_task(command, task_id="t"))
    await until(here.exists)
    first.stop.set()
    await until(lambda: "no more leases" in caplog.text)
    await patient.client.submit(agent_task(task_id="later"))
    go.touch()
    async with hang_limit():
        await first.serving
    assert (await results_of(patient, "t"))["t-0"].attempt == 1, "it was not handed back"
    assert (await patient.client.session("later-0")).stage is Stage.QUEUED
    assert await patient.client.nodes() == [], "it has left"
    await patient.add_node()
    assert (await results_of(patient, "later"))["later-0"].stage is Stage.COMPLETED


async def test_what_does_not_end_in_time_is_handed_back(patient: Service) -> None:
    patient.node_settings = {"drain_s": 0.3}
    first = await patient.add_node()
    command, here, _ = patient.held_up("t")
    await patient.client.submit(agent_task(command, task_id="t"))
    await until(here.exists)
    await first.leave()
    status = await patient.client.session("t-0")
    assert (status.stage, status.attempt, status.node_id) == (Stage.QUEUED, 2, None)


async def test_a_second_signal_ends_the_wait(patient: Service) -> None:
    patient.node_settings = {"drain_s": NEVER_S}
    first = await patient.add_node()
    command, here, _ = patient.held_up("t")
    await patient.client.submit(agent_task(command, task_id="t"))
    await until(here.exists)
    first.stop.set()
    first.hurry.set()
    async with hang_limit():
        await first.serving
    status = await patient.client.session("t-0")
    assert (status.stage, status.attempt) == (Stage.QUEUED, 2)
