"""A session that runs, as its node shows it to whoever watches: on SQLite and PostgreSQL, and over HTTP."""

from __future__ import annotations

import pytest
from desk import LEASE_S, Api, Desk, NodeClient

from polar.server.errors import Conflict
from polar.server.overview import live
from polar.types import Lease, SessionFile, SessionUpload
from polar.types.codec import decode, encode

LIVE = "/v1/sessions/add-0/live"


def blob_of(text: bytes) -> bytes:
    file = SessionFile("logs/harness.stdout", len(text), text)
    return encode(SessionUpload(result=b"", trajectory=None, files=(file,)))


async def held(desk: Desk) -> tuple[str, Lease]:
    await desk.submit()
    node = await desk.register()
    return node, await desk.lease_one(node)


async def seen(desk: Desk, after: int = 0) -> bytes | None:
    found = await desk.state.read(live.newest, "add-0", after)
    return None if found is None else await desk.state.read(live.read, "add-0", found)


async def test_a_node_is_asked_only_while_somebody_watches(desk: Desk) -> None:
    node, lease = await held(desk)
    assert (await desk.beat(node, lease)).watched == ()
    await desk.state.change(live.watch, "add-0")
    assert (await desk.beat(node, lease)).watched == ("add-0",)
    desk.clock.advance(live.WATCHED_S + 1)
    assert (await desk.beat(node, lease)).watched == ()


async def test_the_newest_upload_replaces_the_others(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PART_BYTES", 7)
    node, _ = await held(desk)
    await desk.state.change(live.watch, "add-0")
    await live.take(desk.state, node, "add-0", 1, blob_of(b"one" * 30))
    await live.take(desk.state, node, "add-0", 1, blob_of(b"two"))
    assert await seen(desk) == blob_of(b"two")
    assert await seen(desk, after=2) is None
    assert {row["version"] for row in await desk.rows("watched_parts")} == {2}


async def test_only_the_sessions_node_may_show_it_and_only_if_asked(desk: Desk) -> None:
    node, _ = await held(desk)
    with pytest.raises(Conflict, match="not watched"):
        await live.take(desk.state, node, "add-0", 1, blob_of(b""))
    await desk.state.change(live.watch, "add-0")
    for other, attempt in ((await desk.register("other"), 1), (node, 2)):
        with pytest.raises(Conflict, match="not leased"):
            await live.take(desk.state, other, "add-0", attempt, blob_of(b""))


@pytest.mark.parametrize("end", ["result", "lost", "forgotten"])
async def test_nothing_stays_when_the_session_ends_or_nobody_looks(desk: Desk, end: str) -> None:
    node, lease = await held(desk)
    await desk.state.change(live.watch, "add-0")
    await live.take(desk.state, node, "add-0", 1, blob_of(b"said"))
    if end == "result":
        await desk.report(node, lease)
        assert not await desk.state.change(live.watch, "add-0")
    elif end == "lost":
        desk.clock.advance(LEASE_S + 1)
        assert await desk.expire() == 1
    else:
        for _ in range(30):
            desk.clock.advance(LEASE_S / 4)
            await desk.beat(node, lease)
        await desk.expire()
    assert await desk.rows("watched") == await desk.rows("watched_parts") == []


async def show(node: NodeClient, lease: Lease, blob: bytes) -> int:
    path = f"/sessions/{lease.session.session_id}/attempts/{lease.session.attempt}/live"
    return (await node.ask("PUT", path, data=blob)).status


async def test_watching_over_http(api: Api) -> None:
    await api.submit()
    node = await api.register()
    lease = await node.lease_one()
    assert (await api.ask("GET", LIVE)).status == 204
    assert (await node.beat(lease)).watched == ("add-0",)
    assert await show(node, lease, blob_of(b"said")) == 204
    answer = await api.ask("GET", LIVE)
    assert (answer.status, answer.headers["polar-version"]) == (200, "1")
    assert [file.content for file in decode(answer.body, SessionUpload).files] == [b"said"]
    assert (await api.ask("GET", f"{LIVE}?after=1")).status == 204
    await node.report(lease)
    ended = await api.ask("GET", LIVE)
    assert (ended.status, ended.headers["polar-ended"]) == (204, "yes")
    assert (await api.ask("GET", "/v1/sessions/nowhere/live")).status == 404


@pytest.mark.parametrize("blob", [b"", b"\x00nonsense", encode(SessionUpload(result=b"{}", trajectory=None))])
async def test_what_is_no_upload_of_a_running_session_is_refused(api: Api, blob: bytes) -> None:
    await api.submit()
    node = await api.register()
    assert await show(node, await node.lease_one(), blob) == 422
