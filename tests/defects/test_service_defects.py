"""What the rollout service must hold, each with the defect of published systems that it rules out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from desk import CONTROL, LEASE_S, Clock, Desk, OpenServer, config_of, task_of
from pydantic import ValidationError
from sqlalchemy import insert
from targets import trainer

from polar.client import PolarClient
from polar.config import GatewayConfig, ServerConfig
from polar.errors import PolarError
from polar.server.callbacks import delivery
from polar.server.errors import ApiError
from polar.server.records.tables import tasks
from polar.server.state import State
from polar.store.paths import RunPaths
from polar.types import Stage
from waiting import hang_limit


class TestDurability:
    async def test_a_callback_that_fails_is_tried_again(
        self, open_server: OpenServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """22: one attempt, and the trainer never heard of the result."""
        monkeypatch.setattr(delivery, "LONGEST_NAP_S", 0.02)
        api = await open_server()
        async with trainer(500, 500) as target:
            await api.submit(callback_url=target.url)
            node = await api.register()
            await node.report(await node.lease_one())
            async with hang_limit():
                while len(target.heard) < 3:
                    clock.advance(30)
                    await asyncio.sleep(0.02)
        assert len(set(target.keys)) == 1, "the same key each time, so that it counts once"

    async def test_a_task_that_never_ran_is_reported_too(
        self, open_server: OpenServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """22: no callback at all where the task itself failed."""
        monkeypatch.setattr(delivery, "LONGEST_NAP_S", 0.02)
        api = await open_server()
        async with trainer() as target:
            await api.submit(callback_url=target.url)
            await api.ask("POST", "/v1/tasks/add/cancel")
            await target.until(lambda: len(target.heard) == 1)
            assert b"CANCELLED" in target.heard[0][2]

    async def test_a_restart_loses_nothing(self, open_server: OpenServer) -> None:
        """23: state lived in memory."""
        first = await open_server()
        await first.submit("a", num_samples=2)
        node = await first.register()
        await node.report(await node.lease_one())
        before = await first.get("/v1/tasks/a")
        await first.server.stop()
        second = await open_server()
        assert await second.get("/v1/tasks/a") == before
        assert [entry.result.session_id for entry in (await second.results()).results] == ["a-0"]

    async def test_who_asks_how_a_task_stands_gets_no_tokens(self, open_server: OpenServer) -> None:
        """23: each poll returned every token of every session."""
        api = await open_server()
        await api.submit("a")
        node = await api.register()
        await node.report(await node.lease_one())
        for path in ("/v1/tasks/a", "/v1/results"):
            assert "_ids" not in str(await api.get(path)).replace("session_ids", "")

    async def test_a_lost_nodes_sessions_run_elsewhere_and_count_once(self, desk: Desk, clock: Clock) -> None:
        """24: a node that died before INIT was waited for for ever, and work could count twice."""
        await desk.submit()
        dead, alive = await desk.register("dead"), await desk.register("alive")
        lost = await desk.lease_one(dead)
        clock.advance(LEASE_S - 1)
        await desk.beat(alive)
        clock.advance(2)
        await desk.expire()
        again = await desk.lease_one(alive)
        assert (again.session.session_id, again.session.attempt) == (lost.session.session_id, 2)
        await desk.report(alive, again)
        with pytest.raises(ApiError):
            await desk.report(dead, lost)
        assert len((await desk.results()).results) == 1

    async def test_what_is_cancelled_while_it_waits_frees_no_room_it_never_had(self, desk: Desk) -> None:
        """25: cancelling in READY gave back a place that was not held, and counters went wrong."""
        await desk.submit("a", num_samples=3)
        node = await desk.register(slots=1)
        held = await desk.lease_one(node)
        await desk.beat(node, held, stage=Stage.READY)
        await desk.cancel_task("a")
        assert await desk.lease(node, room=5) == []
        await desk.submit("b", num_samples=2)
        assert len(await desk.lease(node, room=5)) == 2, "as much as the node asks for"

    async def test_a_task_whose_sessions_all_failed_does_not_look_done_well(self, open_server: OpenServer) -> None:
        """26: a task was completed with every session failed."""
        api = await open_server()
        await api.submit("a", num_samples=2)
        node = await api.register()
        for lease in await node.lease(room=2):
            failure = {"where": "harness", "type": "HarnessExit", "message": "exit 1"}
            await node.report(lease, stage=Stage.FAILED, failure=failure)
        status = await api.get("/v1/tasks/a")
        assert {stage: count for stage, count in status["stages"].items() if count} == {"FAILED": 2}


class TestWholeGroups:
    async def test_a_group_is_whole_however_many_tasks_came_between(
        self, open_server: OpenServer, tmp_path: Path, clock: Clock
    ) -> None:
        """P1: a client looked for a group among the newest 10,000 tasks, and ended before an older one."""
        api = await open_server()
        await api.submit("old", group_id="g")
        await fill(tmp_path, clock, count=10_000)
        await api.submit("new", group_id="g")
        node = await api.register()
        old, new = await node.lease(room=2)
        await node.report(new)
        async with PolarClient(api.server.base_url, CONTROL) as client, hang_limit():
            results = client.results(group_id="g")
            assert (await anext(results)).result.task_id == "new"
            waiting = asyncio.ensure_future(anext(results, None))
            await node.report(old)
            last = await waiting
            assert last is not None and last.result.task_id == "old"
            assert await anext(results, None) is None
            [group] = [group async for group in client.groups(group_ids=["g"])]
            assert [session.result.task_id for session in group.sessions] == ["old", "new"]


async def fill(folder: Path, clock: Clock, count: int) -> None:
    """Other tasks, written as rows: submitting so many takes long."""
    state = await State.open(config_of(f"sqlite:///{folder / 'server.db'}"), clock)
    body = task_of("other").model_dump_json()
    row = {"num_samples": 1, "submitted": clock(), "body": body}
    rows = [{**row, "task_id": f"other-{number}"} for number in range(count)]
    await state.change(lambda change: change.connection.execute(insert(tasks), rows).close())
    await state.close()


class TestDoors:
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "/v1/tasks"),
            ("GET", "/v1/results"),
            ("PUT", "/v1/policy"),
            ("POST", "/v1/nodes"),
            ("POST", "/v1/nodes/n/lease"),
            ("GET", "/v1/sessions/a-0/upload"),
        ],
    )
    async def test_nothing_is_open_to_strangers(self, open_server: OpenServer, method: str, path: str) -> None:
        """29: whoever reached the port could run code, take sessions and stop the service."""
        api = await open_server()
        for token in (None, "guess"):
            assert (await api.ask(method, path, token, json={})).status == 401

    def test_everything_listens_on_this_machine_only(self) -> None:
        """29: bound to all interfaces."""
        assert GatewayConfig().host == ServerConfig().host == "127.0.0.1"

    @pytest.mark.parametrize("task_id", ["../../etc", "a/b", ".hidden", "", "a\0b", "x" * 200])
    async def test_an_id_is_no_path(self, open_server: OpenServer, tmp_path: Path, task_id: str) -> None:
        """30: ids went into paths unchecked."""
        with pytest.raises(ValidationError):
            task_of(task_id)
        api = await open_server()
        answer = await api.ask("POST", "/v1/tasks", json={"task_id": task_id, "instruction": "x"})
        assert answer.status == 422
        with pytest.raises(PolarError):
            RunPaths.create(tmp_path / "runs").session(task_id)
