"""A node whose engine, disk or journal fails hands its sessions back, stops leasing, says why, and comes back."""

from __future__ import annotations

import asyncio
import errno
import os
from itertools import cycle
from typing import Any

import pytest
from served_node import AGENT, ServedNode, Service, agent_task, results_of

from polar.node import probes
from polar.store.journal import JournalError
from polar.types import NodeStatus, Stage
from waiting import until

GONE = "no connection to the engine: connection refused"


async def status_of(service: Service, served: ServedNode) -> NodeStatus:
    (found,) = [node for node in await service.client.nodes() if node.slots == served.node.config.pools.running]
    return found


@pytest.mark.check
async def test_an_engine_outage_over_forty_sessions_fails_none_of_them(patient: Service) -> None:
    served = await patient.add_node(running=4)
    served.engine.outage = GONE
    await patient.client.submit(agent_task(task_id="t", num_samples=40))
    await until(lambda: served.node.health.sick)
    # The outage goes on until the server knows of it, and the node has given back all that it held.
    sick = await until(lambda: _told_sick(patient, served))
    assert (sick.part, sick.why) == ("engine", GONE)
    assert all(row.stage is Stage.QUEUED for row in await patient.client.sessions(task_id="t"))
    asked = len(served.engine.requests)
    served.engine.outage = ""
    results = await results_of(patient, "t")
    assert len(results) == 40 and {r.stage for r in results.values()} == {Stage.COMPLETED}
    assert len(served.engine.requests) > asked
    again = [r for r in results.values() if r.attempts]
    assert again and all(r.attempt == len(r.attempts) + 1 for r in results.values())
    reasons = {(a.where, a.why, a.counted) for r in again for a in r.attempts}
    assert reasons <= {("engine", GONE, False)} and all(a.node for r in again for a in r.attempts)
    assert (await status_of(patient, served)).sick is None


async def _told_sick(service: Service, served: ServedNode) -> Any:
    status = await status_of(service, served)
    return status.sick if not status.sessions else None


async def test_a_healthy_node_runs_what_a_sick_one_gave_back(patient: Service) -> None:
    sick, well = await patient.add_node(running=2), await patient.add_node(running=3)
    sick.engine.outage = GONE
    await patient.client.submit(agent_task(task_id="t", num_samples=12))
    results = await results_of(patient, "t")
    assert {r.stage for r in results.values()} == {Stage.COMPLETED}
    assert not sick.engine.requests and len(well.engine.requests) >= 24
    sick.engine.outage = ""


async def test_a_failure_on_a_node_that_looks_healthy_counts_and_is_bounded(patient: Service) -> None:
    """The probe is answered, the calls of sessions are not."""
    served = await patient.add_node(running=2)
    served.engine.outage_for_sessions = GONE
    await patient.client.submit(agent_task(task_id="t"))
    result = (await results_of(patient, "t"))["t-0"]
    bound = served.node.config.node.max_failures
    assert (result.stage, result.attempt) == (Stage.FAILED, bound)
    assert result.failure and (result.failure.where, result.failure.message) == ("engine", GONE)
    assert [(a.attempt, a.where, a.why, a.counted) for a in result.attempts] == [
        (number, "engine", GONE, True) for number in range(1, bound)
    ]
    assert served.node.health.sick is None


async def test_a_full_disk_does_not_cancel_sessions(patient: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    served = await patient.add_node(running=2)
    command, here, go = patient.held_up("first")
    await patient.client.submit(agent_task(command, task_id="first"))
    await until(here.exists)
    works = probes.check_disk
    monkeypatch.setattr(probes, "check_disk", full)
    await _bound_journal(served, full=True)
    await patient.client.submit(agent_task(task_id="t", num_samples=10))
    await until(lambda: _told_sick_of(patient, served, "disk"))
    monkeypatch.setattr(probes, "check_disk", works)
    await _bound_journal(served, full=False)
    go.touch()
    results = await results_of(patient, "t", "first")
    assert len(results) == 11 and {r.stage for r in results.values()} == {Stage.COMPLETED}
    reasons = {a.where for r in results.values() for a in r.attempts}
    assert reasons == {"disk"}


async def _told_sick_of(service: Service, served: ServedNode, part: str) -> bool:
    sick = (await status_of(service, served)).sick
    return sick is not None and sick.part == part


async def _bound_journal(served: ServedNode, *, full: bool) -> None:
    """SQLite then says what it says on a full disk."""
    writer = served.node.journal._writer  # pyright: ignore[reportPrivateUsage]
    pages = 1 if full else 2**30  # fewer than there are stands for as many as there are
    await writer.read(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    if full:  # the free pages of the database are used up too
        filler = ("CREATE TABLE IF NOT EXISTS filler (x BLOB)", "INSERT INTO filler VALUES (zeroblob(2000))")
        with pytest.raises(JournalError, match="disk is full"):
            for statement in cycle(filler):
                await writer.write(lambda connection, sql=statement: connection.execute(sql) and None)


async def test_a_session_that_the_server_did_not_cancel_is_not_recorded_as_cancelled(patient: Service) -> None:
    """The node's own end breaks sessions off; another node is to run them."""
    first = await patient.add_node(running=2)
    command, here, go = patient.held_up("t")
    await patient.client.submit(agent_task(command, task_id="t"))
    await until(here.exists)
    first.serving.cancel()
    await until(lambda: first.serving.done())
    first.serving = asyncio.create_task(asyncio.sleep(0))  # its end is no error here
    status = await until(lambda: _waiting_again(patient))
    assert status.attempt == 2
    go.touch()
    await patient.add_node(running=3)
    assert (await results_of(patient, "t"))["t-0"].stage is Stage.COMPLETED


async def _waiting_again(service: Service) -> Any:
    status = await service.client.session("t-0")
    return status if status.stage is Stage.QUEUED else None


async def test_a_node_that_is_sick_still_stops_at_once(patient: Service) -> None:
    served = await patient.add_node(running=2)
    served.engine.outage = GONE
    await patient.client.submit(agent_task(AGENT, task_id="t"))
    await until(lambda: served.node.health.sick)
    await served.leave()
    assert await patient.client.nodes() == []
