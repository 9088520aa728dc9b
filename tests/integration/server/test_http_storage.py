"""Storage over HTTP: uploads packed on the wire and at rest, in each store; gaps; removal on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zstandard
from desk import CONTROL, NODE, Api, Clock, OpenServer, blob_of, result_of

from node_abilities import able
from polar.client import PolarClient, Retry, ServerError
from polar.node.uplink import LeaseRefused, Unacceptable, Uplink, upload_of
from polar.server.retention.removal import DAY_S
from polar.types import (
    GcRequest,
    Lease,
    LeaseRequest,
    Registration,
    SessionResult,
    SessionUpload,
    Span,
    Trace,
    Trajectory,
    logprobs,
    loss_mask,
    token_ids,
)
from polar.types.codec import MSGPACK, decode
from polar.types.packed import PACKED, is_compressed, unpack_upload
from s3_server import S3Server, s3_server
from waiting import until

LONG = list(range(1, 5000))


def a_tree(session_id: str) -> Trajectory:
    """Two traces with the same 5,000 tokens at their beginning."""

    def trace(prompt: list[int], response: list[int], **metadata: Any) -> Trace:
        return Trace(
            session_id=session_id,
            prompt_ids=token_ids(prompt),
            response_ids=token_ids(response),
            loss_mask=loss_mask([1] * len(response)),
            logprobs=logprobs([-1.0] * len(response)),
            spans=(Span("c", 0, len(response)),),
            metadata=metadata,
        )

    first, second = trace(LONG, [1, 2]), trace([*LONG, 1, 9], [3], branch={"trace": 0, "tokens": len(LONG) + 1})
    return Trajectory(session_id, "tree", (first, second), builder_version="1")


class Served:
    """A server with a client and a node, each of our own."""

    def __init__(self, api: Api) -> None:
        self.url = api.server.base_url
        self.state = api.server.state
        self.client = PolarClient(self.url, CONTROL, retry=Retry(total_s=0))
        self.uplink = Uplink(self.url, NODE)

    async def __aenter__(self) -> Served:
        await self.client.__aenter__()
        await self.uplink.__aenter__()
        await self.uplink.register(Registration(name="one", slots=4, abilities=able()))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.uplink.__aexit__()
        await self.client.__aexit__(None, None, None)

    async def leased(self, task_id: str = "add") -> Lease:
        await self.client.submit({"task_id": task_id, "instruction": "add"})
        [lease] = (await self.uplink.lease(LeaseRequest(room=1))).leases
        return lease

    async def ended(self, task_id: str = "add") -> bytes:
        lease = await self.leased(task_id)
        name = lease.session.session_id
        blob = upload_of(result_of(lease), a_tree(name), ())
        await self.uplink.upload(name, 1, blob)
        return blob

    async def get(self, path: str, accept: str) -> tuple[int, str, bytes]:
        headers = {"Authorization": f"Bearer {CONTROL}", "Accept": accept}
        async with aiohttp.ClientSession() as http, http.get(self.url + path, headers=headers) as answer:
            return answer.status, answer.content_type, await answer.read()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.make_bucket("uploads")
        yield server


@pytest.fixture(params=["folder", "s3", "database"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        request.getfixturevalue("s3")
        return f"s3://uploads/{tmp_path.name}"
    return f"folder:{tmp_path / 'kept'}" if request.param == "folder" else "database"


async def test_every_store_gives_back_what_the_node_sent(open_server: OpenServer, blobs: str) -> None:
    async with Served(await open_server(blobs=blobs)) as served:
        sent = await served.ended()
        assert is_compressed(sent)
        got = await served.client.upload("add-0")
        assert got.trajectory == a_tree("add-0")
        assert await served.client.trajectory("add-0") == a_tree("add-0")
        status, kind, body = await served.get("/v1/sessions/add-0/upload", PACKED)
        assert (status, kind, body) == (200, PACKED, sent)
        assert len(sent) < 4 * len(LONG)  # less than the shared tokens alone, once
        stored = await served.client.storage()
        assert (stored.blobs, stored.blob_bytes) == (1, len(sent))


async def test_who_asks_for_plain_msgpack_or_json_gets_every_trace_whole(open_server: OpenServer) -> None:
    async with Served(await open_server()) as served:
        await served.ended()
        _, kind, body = await served.get("/v1/sessions/add-0/upload", "*/*")
        trajectory = decode(body, SessionUpload).trajectory
        assert kind == MSGPACK and trajectory is not None
        assert trajectory.traces[1].prompt_ids.tolist() == [*LONG, 1, 9]
        _, _, body = await served.get("/v1/sessions/add-0/trajectory", MSGPACK)
        assert decode(body, Trajectory) == a_tree("add-0")
        _, _, body = await served.get("/v1/sessions/add-0/trajectory", "application/json")
        assert json.loads(body)["traces"][1]["prompt_ids"] == [*LONG, 1, 9]


async def test_an_uncompressed_upload_is_stored_compressed(open_server: OpenServer) -> None:
    async with Served(await open_server()) as served:
        lease = await served.leased()
        await served.uplink.upload("add-0", 1, blob_of(result_of(lease), a_tree("add-0")))
        _, _, body = await served.get("/v1/sessions/add-0/upload", PACKED)
        assert is_compressed(body)
        assert unpack_upload(body).trajectory == a_tree("add-0")


async def test_a_bomb_is_refused_before_it_is_in_memory(open_server: OpenServer) -> None:
    async with Served(await open_server(max_upload_bytes=2**20)) as served:
        lease = await served.leased()
        bomb = zstandard.ZstdCompressor(level=19).compress(b"\0" * 200 * 2**20)
        assert len(bomb) < 2**16
        with pytest.raises(Unacceptable, match="413: the upload is more than 1048576 bytes, decompressed"):
            await served.uplink.upload("add-0", 1, bomb)
        with pytest.raises(Unacceptable, match="422: not a SessionUpload"):
            await served.uplink.upload("add-0", 1, upload_of(result_of(lease), None, ())[:-9])
        await served.uplink.upload("add-0", 1, blob_of(result_of(lease)))  # the session still gets its result


async def test_a_blob_that_is_gone_from_the_store_is_named(open_server: OpenServer, tmp_path: Path) -> None:
    async with Served(await open_server()) as served:
        await served.ended()
        [file] = [path for path in tmp_path.rglob("add-0.1.*") if path.is_file()]
        file.unlink()
        with pytest.raises(ServerError, match=rf"500.*server\.db\.blobs has no blob .*{file.name}"):
            await served.client.trajectory("add-0")


async def test_an_upload_waits_for_a_store_that_fails(open_server: OpenServer, tmp_path: Path) -> None:
    """The result is not recorded without its blob, and the node can send it again."""
    (tmp_path / "kept").write_text("in the way")
    async with Served(await open_server(blobs=f"folder:{tmp_path / 'kept'}")) as served:
        lease = await served.leased()
        blob = upload_of(result_of(lease), None, ())
        with pytest.raises(Exception, match="503: the server's blob store failed"):
            await served.uplink.upload("add-0", 1, blob)
        assert (await served.client.result_page()).results == ()
        (tmp_path / "kept").unlink()
        await served.uplink.upload("add-0", 1, blob)
        assert len((await served.client.result_page()).results) == 1


async def test_two_servers_share_a_database_and_its_store(open_server: OpenServer) -> None:
    async with Served(await open_server()) as one, Served(await open_server()) as other:
        sent = await one.ended()
        assert one.state.identity == other.state.identity
        _, _, body = await other.get("/v1/sessions/add-0/upload", PACKED)
        assert body == sent


async def test_two_uploads_of_one_attempt_at_once_give_one_result_with_its_own_blob(
    open_server: OpenServer,
) -> None:
    async with Served(await open_server()) as served:
        lease = await served.leased()
        sent = [upload_of(result_of(lease, score={"reward": float(number)}), None, ()) for number in range(6)]
        await asyncio.gather(*(served.uplink.upload("add-0", 1, blob) for blob in sent))
        [entry] = (await served.client.result_page()).results
        _, _, body = await served.get("/v1/sessions/add-0/upload", PACKED)
        assert SessionResult.model_validate_json(unpack_upload(body).result).reward == entry.result.reward


async def test_a_client_behind_the_retention_is_told(open_server: OpenServer, clock: Clock) -> None:
    async with Served(await open_server()) as served:
        for name in ("a", "b", "c"):
            await served.ended(name)
        first, second, third = (entry.cursor for entry in (await served.client.result_page()).results)
        clock.advance(3 * DAY_S)
        report = await served.client.gc(GcRequest(dry_run=False, results_days=1))
        assert (report.groups, report.sessions, report.complete) == (3, 3, True)
        with pytest.raises(ServerError, match=rf"410.*up to cursor {third}.*allow_gap") as refused:
            await served.client.result_page(after=second)
        assert refused.value.status == 410
        assert (await served.client.result_page(after=second, allow_gap=True)).results == ()
        assert (await served.client.result_page(after=third)).results == ()
        assert (await served.client.result_page()).results == ()  # a new client gets what there is
        with pytest.raises(ServerError, match=r"410.*removed task 'a'"):
            await served.client.result_page(task_id="a")
        with pytest.raises(ServerError, match="410"):
            await anext(served.client.results(after=first))
        with pytest.raises(ServerError, match=r"410.*removed group 'a'"):
            await anext(served.client.groups(group_ids=["a"]))
        with pytest.raises(ServerError, match=r"410.*removed task 'a'"):
            await served.client.trajectory("a-0")


async def test_reading_counts_as_fetched_and_looking_does_not(open_server: OpenServer, clock: Clock) -> None:
    async with Served(await open_server(retention={"results_days": 1})) as served:
        for name in ("page", "group", "session", "traces", "seen", "unread"):
            await served.ended(name)
        await served.client.result_page(task_id="page")
        await anext(served.client.groups(group_ids=["group"]))
        await served.client.session("session-0")
        await served.client.trajectory("traces-0")
        await served.client.overview()
        await served.client.session_list()
        await served.client.task("seen")
        clock.advance(2 * DAY_S)
        assert (await served.client.gc()).groups == 4
        assert (await served.client.gc(GcRequest(unfetched=True))).groups == 6


async def test_events_say_that_some_were_removed(open_server: OpenServer, clock: Clock) -> None:
    async with Served(await open_server()) as served:
        await served.ended("a")
        seen = await anext(served.client.events())
        clock.advance(2 * DAY_S)
        await served.ended("b")
        report = await served.client.gc(GcRequest(dry_run=False, events_days=1))
        assert report.events > 0
        gap = await anext(served.client.events(after=seen.cursor))
        assert (gap.kind, gap.data) == ("gap", {"after": seen.cursor})
        following = await anext(served.client.events(after=gap.cursor))
        assert following.kind != "gap" and following.cursor == gap.cursor + 1
        assert (await anext(served.client.events())).kind != "gap"  # a new client has missed nothing


async def test_the_server_removes_by_itself(open_server: OpenServer, clock: Clock, tmp_path: Path) -> None:
    async with Served(await open_server(retention={"results_days": 1, "events_days": 1})) as served:
        await served.ended()
        await served.client.result_page()
        clock.advance(2 * DAY_S)

        async def removed() -> int:
            return (await served.client.storage()).results_removed

        await until(removed, pause_s=0.1)
        stored = await served.client.storage()
        assert (stored.blobs, stored.blob_bytes, stored.retention["results_days"]) == (0, 0, 1)


async def test_a_node_that_comes_too_late_for_its_session_gives_up(open_server: OpenServer, clock: Clock) -> None:
    """It did not hear that its result was recorded, and the session has been removed since."""
    async with Served(await open_server()) as served:
        sent = await served.ended()
        await served.client.result_page()
        clock.advance(3 * DAY_S)
        assert (await served.client.gc(GcRequest(dry_run=False, results_days=1))).sessions == 1
        await served.uplink.register(Registration(name="one", slots=4, abilities=able()))
        with pytest.raises(LeaseRefused, match=r"410.*removed task 'add'"):
            await served.uplink.upload("add-0", 1, sent)
