"""Events over HTTP: from a cursor on, as they happen, again after a break; and how the server stops."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from desk import CONTROL, Api, Clock, OpenServer, config_of

from polar.server.routes import events as event_routes
from polar.server.serve import RolloutServer
from polar.types import Event
from waiting import hang_limit


@dataclass(frozen=True)
class Frame:
    id: int
    kind: str
    event: Event


class Stream:
    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def lines(self) -> list[str]:
        """Of the next block; empty at the end."""
        found: list[str] = []
        while line := (await self._answer.content.readline()).decode():
            if line == "\n":
                return found
            found.append(line.rstrip("\n"))
        return found

    async def next(self) -> Frame:
        while (lines := await self.lines())[0].startswith(":"):
            pass
        fields = dict(line.split(": ", 1) for line in lines)
        return Frame(int(fields["id"]), fields["event"], Event.model_validate(json.loads(fields["data"])))


@asynccontextmanager
async def watching(api: Api, query: str = "", **headers: str) -> AsyncGenerator[Stream]:
    headers = {"Authorization": f"Bearer {CONTROL}", **headers}
    async with api.http.get(f"{api.server.base_url}/v1/events{query}", headers=headers) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        yield Stream(answer)


async def test_events_come_as_they_happen(api: Api) -> None:
    async with watching(api) as stream:
        await api.submit("add")
        frame = await stream.next()
        assert (frame.kind, frame.event.kind, frame.event.task_id) == ("task", "task", "add")
        assert frame.id == frame.event.cursor
        node = await api.register()
        assert (await stream.next()).event.node_id == node.node_id
        lease = await node.lease_one()
        await node.beat(lease)
        await node.report(lease)
        kinds: list[tuple[str, Any]] = [
            (frame.kind, frame.event.data["stage"]) for frame in [await stream.next() for _ in range(3)]
        ]
        assert kinds == [("stage", "QUEUED"), ("stage", "RUNNING"), ("result", "COMPLETED")]


async def test_a_break_costs_no_event(api: Api) -> None:
    for number in range(4):
        await api.submit(f"t{number}")
    async with watching(api) as stream:
        seen = [await stream.next() for _ in range(2)]
    async with watching(api, "?after=0", **{"Last-Event-ID": str(seen[-1].id)}) as stream:
        seen += [await stream.next() for _ in range(2)]
    async with watching(api, f"?after={seen[-1].id}") as stream:
        await api.submit("t4")
        seen.append(await stream.next())
    assert [frame.event.task_id for frame in seen] == [f"t{number}" for number in range(5)]


async def test_a_last_event_id_that_is_no_cursor_is_refused(api: Api) -> None:
    for wrong in ("x", "-1", "1.5", str(2**70)):
        assert (await api.ask("GET", "/v1/events", headers={"Last-Event-ID": wrong})).status == 422


async def test_silence_is_broken_by_comments(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_routes, "HEARTBEAT_S", 0.01)
    async with watching(api) as stream:
        blocks = [await stream.lines() for _ in range(3)]
    assert blocks[1:] == [[": still here"], [": still here"]]


async def test_more_events_than_a_page_all_come(api: Api) -> None:
    await api.submit("many", num_samples=600)
    await api.ask("POST", "/v1/tasks/many/cancel")
    async with watching(api) as stream:
        frames = [await stream.next() for _ in range(601)]
    assert [frame.id for frame in frames] == sorted({frame.id for frame in frames})


async def test_many_watchers_see_the_same(api: Api) -> None:
    async def watch() -> int:
        async with watching(api) as stream:
            return (await stream.next()).id

    watchers = [asyncio.create_task(watch()) for _ in range(10)]
    await api.submit()
    assert len(set(await asyncio.gather(*watchers))) == 1


async def test_a_server_that_stops_sends_those_who_wait_home(open_server: OpenServer) -> None:
    api = await open_server()
    node = await api.register()
    lease = asyncio.create_task(node.lease(wait_s=60))
    page = asyncio.create_task(api.results("?wait_s=60"))
    async with watching(api) as stream:
        await stream.next()
        await api.server.stop()
        assert await stream.lines() == []
    assert await lease == []
    assert (await page).results == ()


async def test_answers_do_not_wait_for_acknowledgements(api: Api) -> None:
    listening = api.server._socket  # pyright: ignore[reportPrivateUsage]
    assert listening is not None
    assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_stopping_twice_is_harmless(open_server: OpenServer) -> None:
    api = await open_server()
    await api.server.stop()
    await api.server.stop()


async def test_a_port_that_is_taken_is_an_error_at_once(api: Api, clock: Clock) -> None:
    port = int(api.server.base_url.rsplit(":", 1)[1])
    second = RolloutServer(
        config_of("sqlite://", port=port), control_token="control", node_token="node", clock=clock
    )
    with pytest.raises(OSError, match="in use"):
        await second.start()


@pytest.mark.parametrize(("control", "node"), [("", "n"), ("c", ""), ("same", "same")])
def test_a_server_without_two_tokens_does_not_open(control: str, node: str) -> None:
    with pytest.raises(ValueError, match="differ"):
        RolloutServer(config_of("sqlite://"), control_token=control, node_token=node)


async def test_an_error_in_the_background_ends_the_server_aloud(
    open_server: OpenServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    api = await open_server(heartbeat_s=0.02)

    def broken(_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("polar.server.records.leases.expire", broken)
    with pytest.raises(ExceptionGroup) as caught:
        async with hang_limit():
            await api.server.wait()
    assert caught.group_contains(RuntimeError, match="a defect")
    await api.server.stop()
    assert "server failed" in caplog.text
