"""A server that stops in the middle, or dies, and the next one on the same database; both kinds of database."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import aiohttp
from desk import CONTROL, LEASE_S, Clock, NodeClient, OpenServer

from polar.types import Stage


async def test_all_of_it_is_there_again(open_server: OpenServer, database: str) -> None:
    first = await open_server(database)
    await first.submit("a", num_samples=3)
    await first.ask("PUT", "/v1/policy", json={"version": "5"})
    node = await first.register()
    done, held = await node.lease(room=2)
    await node.beat(done, held)
    await node.report(done)
    before = await first.get("/v1/tasks/a")
    await first.server.stop()

    second = await open_server(database)
    assert await second.get("/v1/tasks/a") == before
    assert (await second.get("/v1/policy"))["version"] == "5"
    assert [entry.result.session_id for entry in (await second.results()).results] == ["a-0"]
    assert (await second.ask("GET", "/v1/sessions/a-0/upload")).status == 200
    again = NodeClient(second, node.credentials)
    assert (await again.beat(held)).lost == ()
    assert (await again.report(done)).status == 204
    assert (await again.report(held)).status == 204
    assert [lease.session.session_id for lease in await again.lease(room=5)] == ["a-2"]


async def test_nodes_are_not_blamed_for_the_time_the_server_was_away(
    open_server: OpenServer, database: str, clock: Clock
) -> None:
    first = await open_server(database)
    await first.submit("a", num_samples=2)
    node = await first.register()
    held, silent = await node.lease(room=2)
    await first.server.stop()
    clock.advance(100 * LEASE_S)

    second = await open_server(database, heartbeat_s=0.05, lease_beats=LEASE_S / 0.05)
    again = NodeClient(second, node.credentials)
    assert (await again.beat(held)).lost == ()
    clock.advance(LEASE_S - 1)
    assert (await again.beat(held)).lost == ()
    clock.advance(1)
    [returned] = await again.lease(wait_s=60)
    assert (returned.session.session_id, returned.session.attempt) == (silent.session.session_id, 2)
    assert (await again.beat(held, silent)).lost == ("a-1",)


async def test_cursors_go_on_where_they_were(open_server: OpenServer, database: str) -> None:
    first = await open_server(database)
    await first.submit("a", num_samples=2)
    await first.ask("POST", "/v1/sessions/a-0/cancel")
    page = await first.results()
    await first.server.stop()
    second = await open_server(database)
    await second.ask("POST", "/v1/sessions/a-1/cancel")
    rest = await second.results(f"?after={page.cursor}&wait_s=10")
    assert [entry.result.session_id for entry in rest.results] == ["a-1"]
    assert rest.cursor > page.cursor


SERVES = """
import asyncio, sys
from polar.config import ServerConfig
from polar.server.serve import RolloutServer

async def main(database):
    config = ServerConfig(port=0, database=database)
    async with RolloutServer(config, control_token="control-secret", node_token="node-secret") as server:
        sys.stdout.write(server.base_url + "\\n")
        sys.stdout.flush()
        await server.wait()

asyncio.run(main(sys.argv[1]))
"""


async def test_what_was_acknowledged_survives_kill_9(open_server: OpenServer, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'server.db'}"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVES, database, stdout=subprocess.PIPE)
    assert child.stdout is not None
    base_url = (await child.stdout.readline()).decode().strip()
    acknowledged = await submit_many(base_url)
    child.kill()
    await child.wait()
    api = await open_server(database)
    kept = {task["task_id"]: task for task in await api.get("/v1/tasks?limit=1000")}
    assert len(acknowledged) == 30
    assert acknowledged <= kept.keys()
    assert all(kept[task_id]["stages"] == {"QUEUED": 3} for task_id in acknowledged)
    node = await api.register()
    for lease in await node.lease(room=1000):
        assert (await node.report(lease)).status == 204
    pages = (await api.results("?limit=1000")).results
    assert {entry.result.task_id for entry in pages} == kept.keys()
    assert {entry.result.stage for entry in pages} == {Stage.COMPLETED}


async def submit_many(base_url: str) -> set[str]:
    acknowledged: set[str] = set()
    headers = {"Authorization": f"Bearer {CONTROL}"}
    async with aiohttp.ClientSession(base_url, headers=headers) as http:
        for number in range(30):
            task = {"task_id": f"t{number}", "instruction": "x", "num_samples": 3}
            async with http.post("/v1/tasks", json=task) as answer:
                assert answer.status == 201
                acknowledged.add((await answer.json())["task_id"])
    return acknowledged
