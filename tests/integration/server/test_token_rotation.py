"""Service tokens are rotated while servers run: two servers on one database agree, and no lease is lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from desk import AS_IN_SCHEMA_7, CONTROL, NODE, Answer, Api, Clock, OpenServer, config_of
from sqlalchemy import create_engine, text

from node_abilities import able
from polar.server.access import tokens
from polar.server.records.nodes import OLD_KEY_S
from polar.server.serve import RolloutServer
from waiting import until

NEW, NEWER = "new-secret", "newer-secret"
DAY_S = 24 * 3600.0
PAGE = {"x-polar-page": "1", "sec-fetch-site": "same-origin"}


@pytest.fixture
async def pair(database: str, clock: Clock) -> AsyncGenerator[tuple[Api, Api]]:
    """Two servers on one database. SQLite has one server in earnest; its files allow two."""
    async with AsyncExitStack() as stack:

        async def one() -> Api:
            server = RolloutServer(config_of(database), control_token=CONTROL, node_token=NODE, clock=clock)
            await server.start()
            stack.push_async_callback(server.stop)
            return await stack.enter_async_context(Api(server))

        yield await one(), await one()


async def rotate(api: Api, new: str, *, kind: str = "control", token: str = CONTROL, **options: Any) -> Answer:
    body = {"sha256": sha256(new.encode()).hexdigest(), **options}
    return await api.ask("POST", f"/v1/tokens/{kind}/rotate", token, json=body)


async def status(api: Api, token: str | None) -> int:
    return (await api.ask("GET", "/v1/tasks", token)).status


async def until_refused(api: Api, token: str) -> None:
    async def refused() -> bool:
        return await status(api, token) == 401

    await until(refused)


async def test_both_tokens_are_valid_at_both_servers_during_the_overlap(
    pair: tuple[Api, Api], clock: Clock
) -> None:
    first, second = pair
    assert await status(second, CONTROL) == 200, "the second has looked at the tokens before the rotation"
    answer = await rotate(first, NEW, overlap_s=DAY_S)
    assert answer.status == 200 and answer.body["expires"] is None
    for api in pair:
        assert [await status(api, token) for token in (CONTROL, NEW, "x", None)] == [200, 200, 401, 401]
    clock.advance(DAY_S - 1)
    assert [await status(api, CONTROL) for api in pair] == [200, 200]
    clock.advance(1)
    assert [await status(api, NEW) for api in pair] == [200, 200]
    for api in pair:
        await until_refused(api, CONTROL)


async def test_a_new_token_is_known_at_once_at_a_server_that_has_just_looked(
    pair: tuple[Api, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    monkeypatch.setattr(tokens, "LOOK_AFTER_MISS_S", 0.5)
    assert await status(second, "unknown") == 401
    await rotate(first, NEW, overlap_s=60)
    assert await status(second, NEW) == 200


async def test_without_overlap_the_old_token_ends_at_once(pair: tuple[Api, Api]) -> None:
    first, second = pair
    assert (await rotate(first, NEW, overlap_s=0)).status == 200
    assert await status(first, CONTROL) == 401
    assert await status(second, NEW) == 200
    await until_refused(second, CONTROL)


async def test_a_second_rotation_does_not_lengthen_the_first_overlap(api: Api, clock: Clock) -> None:
    await rotate(api, NEW, overlap_s=60)
    await rotate(api, NEWER, token=NEW, overlap_s=DAY_S)
    clock.advance(61)
    await until_refused(api, CONTROL)
    assert [await status(api, token) for token in (NEW, NEWER)] == [200, 200]


async def test_a_rotation_may_be_repeated_and_an_old_token_does_not_come_back(api: Api) -> None:
    """The answer to the first request may be lost."""
    assert (await rotate(api, NEW, overlap_s=DAY_S)).status == 200
    assert (await rotate(api, NEW, overlap_s=DAY_S)).status == 200
    assert (await rotate(api, CONTROL, token=NEW)).status == 409
    assert (await rotate(api, NODE, token=NEW)).status == 409, "the two kinds have different tokens"
    listed = await api.get("/v1/tokens")
    assert sorted((one["kind"], one["expires"] is None) for one in listed) == [
        ("control", False),
        ("control", True),
        ("node", True),
    ]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"sha256": "x"},
        {"sha256": "0" * 64, "overlap_s": -1},
        {"sha256": "0" * 64, "overlap_s": 1e12},
        {"sha256": "0" * 64, "token": "x"},
    ],
)
async def test_a_malformed_rotation_is_refused(api: Api, body: dict[str, Any]) -> None:
    assert (await api.ask("POST", "/v1/tokens/control/rotate", json=body)).status == 422
    assert (await api.ask("POST", "/v1/tokens/other/rotate", json={"sha256": "0" * 64})).status == 422
    assert await status(api, CONTROL) == 200


def page_of(api: Api) -> dict[str, str]:
    return {**PAGE, "origin": api.server.base_url}


async def log_in(api: Api, token: str = CONTROL) -> str:
    answer = await api.ask("POST", "/login", None, json={"token": token}, headers=page_of(api))
    assert answer.status == 204, answer
    return answer.headers["Set-Cookie"].partition("=")[2].partition(";")[0]


async def seen_with(api: Api, cookie: str) -> int:
    name = f"polar_login_{api.server.base_url.rpartition(':')[2]}"
    return (await api.ask("GET", "/v1/tasks", None, headers={"cookie": f"{name}={cookie}"})).status


async def test_a_login_ends_with_its_token_at_both_servers(pair: tuple[Api, Api], clock: Clock) -> None:
    first, second = pair
    old = await log_in(first)
    assert [await seen_with(api, old) for api in pair] == [200, 200]
    await rotate(first, NEW, overlap_s=60)
    new = await log_in(second, NEW)
    assert [await seen_with(api, cookie) for api in pair for cookie in (old, new)] == [200] * 4
    clock.advance(61)
    for api in pair:

        async def ended(api: Api = api) -> bool:
            return await seen_with(api, old) == 401

        await until(ended)
        assert await seen_with(api, new) == 200


async def test_a_logout_ends_the_login_and_not_only_the_cookie(api: Api) -> None:
    cookie, other = await log_in(api), await log_in(api)
    name = f"polar_login_{api.server.base_url.rpartition(':')[2]}"
    headers = {**page_of(api), "cookie": f"{name}={cookie}"}
    assert (await api.ask("POST", "/logout", None, headers=headers)).status == 204
    assert (await seen_with(api, cookie), await seen_with(api, other)) == (401, 200)


async def test_a_login_alone_cannot_rotate_a_token(api: Api) -> None:
    name, cookie = f"polar_login_{api.server.base_url.rpartition(':')[2]}", await log_in(api)
    headers = {**page_of(api), "cookie": f"{name}={cookie}"}
    answer = await api.ask("POST", "/v1/tokens/control/rotate", None, json={"sha256": "0" * 64}, headers=headers)
    assert answer.status == 401


async def test_another_token_at_the_start_replaces_the_old_one(open_server: OpenServer, tmp_path: Path) -> None:
    first = await open_server()
    await rotate(first, NEW, overlap_s=DAY_S)
    await first.server.stop()
    config = config_of(f"sqlite:///{tmp_path / 'server.db'}")
    async with RolloutServer(config, control_token="third", node_token=NODE) as server, Api(server) as again:
        assert [await status(again, token) for token in (CONTROL, NEW, "third")] == [401, 401, 200]
        [entry] = [
            one
            for one in (await again.ask("GET", "/v1/actions", "third")).body["actions"]
            if one["by"] == "server"
        ]
        assert (entry["action"], entry["detail"]["kind"]) == ("tokens.replace", "control")


async def test_a_token_that_was_rotated_out_stays_out_after_a_restart(
    open_server: OpenServer, caplog: pytest.LogCaptureFixture
) -> None:
    first = await open_server()
    await rotate(first, NEW, overlap_s=0)
    await first.server.stop()
    again = await open_server()
    assert [await status(again, token) for token in (CONTROL, NEW)] == [401, 200]
    assert "was rotated out; put the new one in its place: POLAR_CONTROL_TOKEN" in caplog.text
    assert CONTROL not in caplog.text


async def test_no_token_is_in_the_database(open_server: OpenServer, tmp_path: Path) -> None:
    api = await open_server()
    node = await api.register()
    await rotate(api, NEW, overlap_s=DAY_S)
    cookie = await log_in(api, NEW)
    await api.ask("GET", "/v1/tasks", "a-wrong-secret")
    await api.server.stop()
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("server.db*"))
    secrets = (CONTROL, NODE, NEW, "a-wrong-secret", cookie, node.credentials.key)
    assert [secret for secret in secrets if secret.encode() in stored] == []


async def test_a_rotated_node_token_lets_no_node_in_and_puts_none_out(api: Api) -> None:
    await api.submit()
    node = await api.register()
    lease = await node.lease_one()
    assert (await rotate(api, NEW, kind="node", overlap_s=0)).status == 200
    registration = {"name": "two", "slots": 1, "abilities": able().model_dump(mode="json")}
    assert (await api.ask("POST", "/v1/nodes", NODE, json=registration)).status == 401
    assert (await api.ask("POST", "/v1/nodes", NEW, json=registration)).status == 201
    assert (await node.beat(lease)).lost == ()
    assert (await node.report(lease)).status == 204


async def test_a_nodes_key_is_renewed_without_losing_its_lease(
    open_server: OpenServer, database: str, clock: Clock
) -> None:
    api = await open_server(database, heartbeat_s=3600.0)
    await api.submit()
    node = await api.register()
    lease = await node.lease_one()
    renewed = await node.ask("POST", "/key")
    assert renewed.status == 200 and renewed.body["node_id"] == node.node_id
    route = f"/v1/nodes/{node.node_id}/heartbeat"
    beat: dict[str, Any] = {"sessions": []}
    held = {"session_id": "add-0", "attempt": 1, "stage": "RUNNING"}
    for key in (node.credentials.key, renewed.body["key"]):
        assert (await api.ask("POST", route, key, json={"sessions": [held]})).status == 200
    lost_answer = await node.ask("POST", "/key")  # with the old key: the node never saw the first answer
    assert lost_answer.status == 200
    assert (await api.ask("POST", route, renewed.body["key"], json=beat)).status == 401
    clock.advance(OLD_KEY_S)
    assert (await node.ask("POST", "/heartbeat", json=beat)).status == 401
    key = lost_answer.body["key"]
    assert (await api.ask("POST", route, key, json={"sessions": [held]})).body["lost"] == []
    assert lease.session.attempt == (await api.get("/v1/sessions/add-0"))["attempt"]


async def test_a_database_without_tokens_and_actions_gets_them(open_server: OpenServer, database: str) -> None:
    first = await open_server(database)
    await first.submit()
    node = await first.register()
    await first.server.stop()
    engine = create_engine(database)
    with engine.begin() as connection:
        for statement in (*AS_IN_SCHEMA_7, "UPDATE polar_server SET version = 7"):
            connection.execute(text(statement))
    engine.dispose()
    again = await open_server(database)
    assert (await again.ask("POST", f"/v1/nodes/{node.node_id}/key", node.credentials.key)).status == 200
    assert (await rotate(again, NEW, overlap_s=0)).status == 200
    assert [one["action"] for one in (await again.ask("GET", "/v1/actions", NEW)).body["actions"]] == [
        "access.rotate"
    ]
