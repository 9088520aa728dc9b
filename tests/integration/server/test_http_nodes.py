"""What gateway nodes do over HTTP: register, lease, stay alive, hand back, report, leave."""

from __future__ import annotations

import asyncio
import re

import pytest
from desk import CONTROL, LEASE_S, NODE, USABLE, Api, Clock, NodeClient, OpenServer, blob_of, result_of

from node_abilities import able
from polar.server.records import leases
from polar.server.routes.idle_nodes import LOOKS_AT_ONCE
from polar.server.state import Change
from polar.types import PROTOCOL, Lease, LeaseReply, SessionUpload, Stage
from polar.types.codec import encode
from waiting import hang_limit, until

NODE_ROUTES = [
    ("POST", "/lease"),
    ("POST", "/heartbeat"),
    ("POST", "/handback"),
    ("PUT", "/sessions/add-0/attempts/1/result"),
    ("DELETE", ""),
]


async def settled(api: Api) -> None:
    """By now the server has most likely begun with the requests sent before; the tests hold either way."""
    for _ in range(3):
        await api.ask("GET", "/healthz", token=None)


async def test_a_node_registers_with_the_node_token_only(api: Api) -> None:
    registration = {"name": "one", "slots": 2, "abilities": {"protocol": PROTOCOL}}
    node = await api.register()
    for wrong in (None, CONTROL, node.credentials.key, "x"):
        answer = await api.ask("POST", "/v1/nodes", wrong, json=registration)
        assert (answer.status, NODE in answer.detail) == (401, False)
    assert node.credentials.heartbeat_s == 10.0
    [listed] = await api.get("/v1/nodes")
    assert (listed["node_id"], listed["alive"], listed["sessions"]) == (node.node_id, True, [])


async def test_a_wrong_registration_is_refused(api: Api) -> None:
    for body in ({"name": "", "slots": 1}, {"name": "x", "slots": 0}, {"name": "a\0", "slots": 1}):
        whole = {**body, "abilities": {"protocol": PROTOCOL}}
        assert (await api.ask("POST", "/v1/nodes", NODE, json=whole)).status == 422


async def test_node_routes_want_the_key_of_that_very_node(api: Api) -> None:
    one, other = await api.register("one"), await api.register("other")
    for method, path in NODE_ROUTES:
        for wrong in (None, CONTROL, NODE, other.credentials.key):
            answer = await api.ask(method, f"/v1/nodes/{one.node_id}{path}", wrong)
            assert answer.status == 401, answer
            assert one.credentials.key not in answer.detail
        for unknown in ("node-0", "%00", "x" * 500):
            assert (await api.ask(method, f"/v1/nodes/{unknown}{path}", one.credentials.key)).status == 401


async def test_a_session_is_leased_run_and_reported(api: Api) -> None:
    await api.submit("add", num_samples=2)
    node = await api.register()
    first, second = await node.lease(room=5)
    assert (first.session.session_id, second.session.session_id) == ("add-0", "add-1")
    reply = await node.beat(first, second)
    assert (reply.cancel, reply.lost) == ((), ())
    assert (await api.get("/v1/sessions/add-0"))["stage"] == "RUNNING"
    assert (await node.report(first, score={"reward": 1.0})).status == 204
    assert (await api.get("/v1/sessions/add-0"))["result"]["score"]["reward"] == 1.0
    [listed] = await api.get("/v1/nodes")
    assert listed["sessions"] == ["add-1"]


async def test_a_lease_waits_for_a_task(api: Api) -> None:
    node = await api.register()
    waiting = asyncio.create_task(node.lease(room=3, wait_s=60))
    await settled(api)
    await api.submit("add", num_samples=2)
    assert len(await waiting) >= 1


async def test_a_task_for_one_node_does_not_make_all_that_wait_look(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def counted(change: Change, node_id: str, room: int) -> LeaseReply:
        looked.append(node_id)
        return lease(change, node_id, room)

    lease = leases.lease
    monkeypatch.setattr(leases, "lease", counted)
    nodes = [await api.register(f"node-{number}") for number in range(30)]
    waiting = [asyncio.create_task(node.lease(wait_s=60)) for node in nodes]
    async with hang_limit():
        await until(lambda: len(looked) == len(nodes))
        looked.clear()
        await api.submit("add", num_samples=1)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await settled(api)
        assert len(looked) <= LOOKS_AT_ONCE
        await api.submit("many", num_samples=29)  # and none is forgotten
        found = await asyncio.gather(*waiting)
    assert len({one.session.session_id for leased in found for one in leased}) == len(found)


async def test_a_lease_waits_for_a_session_that_returns(api: Api) -> None:
    await api.submit()
    one, other = await api.register("one"), await api.register("other")
    lease = await one.lease_one()
    waiting = asyncio.create_task(other.lease(wait_s=60))
    await settled(api)
    given = {"session_id": "add-0", "attempt": lease.session.attempt}
    assert (await one.ask("POST", "/handback", json=given)).status == 204
    [again] = await waiting
    assert again.session.attempt == 2
    assert (await one.ask("POST", "/handback", json=given)).status == 409
    assert (await one.ask("POST", "/handback", json={**given, "session_id": "nobody"})).status == 404


async def test_a_lease_that_finds_nothing_is_empty(api: Api) -> None:
    node = await api.register()
    assert await node.lease(wait_s=0.05) == []


async def test_a_client_that_leaves_is_leased_nothing(api: Api) -> None:
    node = await api.register()
    waiting = asyncio.create_task(node.lease(wait_s=60))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.wait((waiting,))
    for _ in range(100):
        await asyncio.sleep(0.02)
        if not any("long_poll.py" in str(task) for task in asyncio.all_tasks()):
            break
    else:
        pytest.fail("the long poll outlives its client")
    await api.submit()
    assert len(await node.lease()) == 1


async def test_a_wrong_lease_request_is_refused(api: Api) -> None:
    node = await api.register()
    for body in ({"room": 0}, {"room": 1, "wait_s": 61}, {"room": 10**9}, {}):
        assert (await node.ask("POST", "/lease", json=body)).status == 422


async def test_a_heartbeat_hears_what_to_break_off(api: Api) -> None:
    await api.submit("add", num_samples=2)
    node = await api.register()
    first, second = await node.lease(room=2)
    await api.ask("POST", "/v1/sessions/add-0/cancel")
    stale = second.model_copy(update={"session": second.session.model_copy(update={"attempt": 7})})
    reply = await node.beat(first, stale)
    assert (reply.cancel, reply.lost) == (("add-0",), ("add-1",))
    assert (await node.report(first, stage="CANCELLED")).status == 204
    assert (await api.get("/v1/sessions/add-0"))["cancel_requested"]


async def test_a_heartbeat_carries_the_policy(api: Api) -> None:
    node = await api.register()
    await api.ask("PUT", "/v1/policy", json={"version": "3", "paused": True})
    assert (await node.beat()).policy.paused
    answer = await node.ask("POST", "/lease", json={"room": 1, "wait_s": 0})
    assert answer.body["policy"]["version"] == "3"


async def test_the_server_lets_leases_run_out_by_itself(open_server: OpenServer, clock: Clock) -> None:
    api = await open_server(heartbeat_s=0.05, lease_beats=LEASE_S / 0.05)
    await api.submit()
    one, other = await api.register("one"), await api.register("other")
    old = await one.lease_one()
    clock.advance(LEASE_S)
    [new] = await other.lease(wait_s=60)
    assert (new.session.session_id, new.session.attempt) == ("add-0", 2)
    assert (await one.report(old)).status == 409
    assert (await other.report(new)).status == 204
    assert [entry.result.attempt for entry in (await api.results()).results] == [2]


async def test_an_acknowledgement_that_got_lost_can_be_had_again(api: Api) -> None:
    await api.submit()
    node = await api.register()
    lease = await node.lease_one()
    assert [(await node.report(lease)).status for _ in range(3)] == [204, 204, 204]
    assert len((await api.results()).results) == 1


async def test_a_node_that_leaves_frees_its_sessions_and_is_unknown(api: Api) -> None:
    await api.submit("add", num_samples=2)
    one, other = await api.register("one"), await api.register("other")
    await one.lease(room=2)
    assert (await one.ask("DELETE", "")).status == 204
    assert [lease.session.attempt for lease in await other.lease(room=5)] == [2, 2]
    assert (await one.ask("POST", "/heartbeat", json={})).status == 401
    assert (await one.ask("DELETE", "")).status == 401
    assert [node["name"] for node in await api.get("/v1/nodes")] == ["other"]


def wrong_blobs(lease: Lease) -> dict[str, bytes]:
    good = result_of(lease)
    text = good.model_dump_json().encode()
    return {
        "empty": b"",
        "noise": bytes(range(256)),
        "cut": blob_of(good)[:-3],
        "other session": blob_of(good.model_copy(update={"session_id": "add-1"})),
        "other attempt": blob_of(good.model_copy(update={"attempt": 2})),
        "other task": blob_of(good.model_copy(update={"task_id": "sub"})),
        "not final": blob_of(good.model_copy(update={"stage": Stage.RUNNING})),
        "no result": encode(SessionUpload(result=b"{}", trajectory=None)),
        "result no JSON": encode(SessionUpload(result=b"\xff", trajectory=None)),
        "unknown field": encode(SessionUpload(result=text[:-1] + b',"x":1}', trajectory=None)),
        "deep": b"\x91" * 100_000,
    }


async def test_a_wrong_upload_is_refused_and_the_right_one_still_taken(api: Api) -> None:
    await api.submit("add", num_samples=2)
    node = await api.register()
    lease = await node.lease_one()
    for name, blob in wrong_blobs(lease).items():
        answer = await node.upload(lease, blob)
        assert answer.status == 422, name
        assert len(answer.detail) < 2000
    assert (await node.report(lease)).status == 204


async def test_an_upload_for_an_unknown_session_or_from_another_node_is_refused(api: Api) -> None:
    await api.submit("add", num_samples=2)
    one, other = await api.register("one"), await api.register("other")
    lease = await one.lease_one()
    assert (await other.report(lease)).status == 409
    stranger = lease.model_copy(update={"session": lease.session.model_copy(update={"session_id": "x-0"})})
    assert (await one.report(stranger)).status == 404
    path = f"/sessions/add-0/attempts/{10**40}/result"
    assert (await one.ask("PUT", path, data=blob_of(result_of(lease)))).status == 422
    assert (await one.ask("PUT", "/sessions/add-0/attempts/0/result", data=b"")).status == 422


async def test_an_upload_that_is_too_large_is_refused(open_server: OpenServer) -> None:
    api = await open_server(max_upload_bytes=5000, max_task_bytes=2000)
    await api.submit()
    node = await api.register()
    lease = await node.lease_one()
    assert (await node.upload(lease, b"x" * 5001)).status == 413
    assert (await node.report(lease, failure=failure_of(3000))).status == 204


def failure_of(size: int) -> dict[str, object]:
    return {"where": "harness", "type": "Error", "message": "x" * size}


async def test_many_nodes_share_the_sessions_without_overlap(api: Api) -> None:
    await api.submit("add", num_samples=60)
    workers = [await api.register(f"node {number}") for number in range(6)]

    async def work(node: NodeClient) -> list[str]:
        done: list[str] = []
        while leases := await node.lease(room=3):
            for lease in leases:
                assert (await node.report(lease)).status == 204
                done.append(lease.session.session_id)
        return done

    done = [name for names in await asyncio.gather(*map(work, workers)) for name in names]
    assert sorted(done) == [f"add-{number:02}" for number in range(60)]
    assert (await api.get("/v1/tasks/add"))["done"]


async def test_a_node_that_left_while_it_waited_must_register_again(api: Api) -> None:
    node = await api.register()
    waiting = asyncio.create_task(node.ask("POST", "/lease", json={"room": 1, "wait_s": 60}))
    await settled(api)
    await api.server.state.change(leases.leave, node.node_id)
    await node.ask("DELETE", "")
    await api.submit()
    assert (await waiting).status == 401


@pytest.mark.parametrize(
    ("abilities", "words"),
    [
        (None, "this node is an older Polar with protocol 1, .*: upgrade the node to the server's version"),
        ({"protocol": PROTOCOL + 1, "polar": "9.9"}, "Polar 9.9 with protocol .*: upgrade the server"),
        ({"protocol": PROTOCOL + 1, "polar": "9.9", "brain": "large"}, "Polar 9.9 with protocol"),
    ],
)
async def test_a_node_of_another_version_is_refused_and_told_which_side_is_older(
    api: Api, abilities: dict[str, object] | None, words: str
) -> None:
    """Also one with fields that this server does not know, and one from before there were abilities."""
    body = {"name": "x", "slots": 1, **({"abilities": abilities} if abilities else {})}
    answer = await api.ask("POST", "/v1/nodes", NODE, json=body)
    assert answer.status == 426 and re.search(words, answer.detail), answer
    assert f"protocol {PROTOCOL}" in answer.detail


@pytest.mark.parametrize("body", [b"", b"[]", b'"x"', b"{", b'{"abilities": 3}'])
async def test_a_registration_that_is_none_is_malformed_or_of_another_version(api: Api, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    assert (await api.ask("POST", "/v1/nodes", NODE, data=body, headers=headers)).status in (422, 426)


async def test_a_node_shows_what_it_can_and_a_session_why_it_waits(api: Api) -> None:
    await api.submit("add", runtime="docker")
    node = await api.register(runtimes=("local",), labels=("lab",))
    [listed] = await api.get("/v1/nodes")
    assert (listed["abilities"]["runtimes"], listed["abilities"]["labels"]) == (["local"], ["lab"])
    session = await api.get("/v1/sessions/add-0")
    assert session["waits"] == "no live node has the runtime docker (1 node: local)"
    overview = await api.get("/v1/overview")
    assert overview["waiting"] == [{"why": session["waits"], "sessions": 1, "task_id": "add"}]
    beat = {"abilities": able().model_dump(mode="json")}
    assert (await node.ask("POST", "/heartbeat", json=beat)).status == 200
    await node.lease_one()
    assert (await api.get("/v1/sessions/add-0"))["waits"] == ""


async def test_a_task_for_a_group_that_has_enough_ends_when_it_is_submitted(api: Api) -> None:
    limits = {"group_id": "g", "enough": 1}
    await api.submit("a", **limits)
    node = await api.register()
    assert (await node.report(await node.lease_one(), **USABLE)).status == 204
    late = await api.submit("b", num_samples=2, **limits)
    assert (late["done"], late["stages"], late["waits"]) == (True, {"CANCELLED": 2}, "")
    group = await api.get("/v1/groups/g")
    assert (group["usable"], group["unfinished"], group["done"]) == (1, 0, True)
    refused = await api.ask("POST", "/v1/tasks", json={"task_id": "c", "instruction": "x", "group_id": "g"})
    assert refused.status == 409 and refused.detail.startswith("enough: the other tasks of group 'g' have 1")
