"""The record of control actions: complete, in the transaction of the change, bounded, and not to be altered."""

from __future__ import annotations

import json
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from desk import CONTROL, NODE, Api, Desk, OpenServer

from node_abilities import able
from polar.server.access import actions
from polar.server.access.actions import REFUSALS, UNDER_WAY, ActionUnderWay, Actor
from polar.server.app import openapi_document
from polar.server.state import Change
from polar.types import Action

FINGERPRINT = sha256(CONTROL.encode()).hexdigest()[:12]
NOT_ACTIONS = {"/v1/results/query", "/v1/groups/query", "/v1/training/{run_id}/points", "/login", "/logout"}
"""Reads with a body, curves of trainers, and what is tried by itself below."""


async def recorded(api: Api) -> list[Action]:
    return [Action.model_validate(one) for one in (await api.get("/v1/actions?limit=1000"))["actions"]]


async def test_every_control_route_that_changes_something_is_recorded(api: Api) -> None:
    await api.submit("add", num_samples=2, group_id="g")
    node = await api.register()
    abilities = able().model_dump(mode="json")
    tried: dict[tuple[str, str], tuple[str, Any]] = {
        ("post", "/v1/tasks"): ("tasks.submit", {"task_id": "more", "instruction": "x"}),
        ("post", "/v1/tasks/{task_id}/cancel"): ("tasks.cancel_task", None),
        ("post", "/v1/groups/{group_id}/cancel"): ("groups.cancel", None),
        ("post", "/v1/sessions/{session_id}/cancel"): ("sessions.cancel", None),
        ("post", "/v1/storage/gc"): ("storage.collect", {"dry_run": False}),
        ("put", "/v1/policy"): ("events.put_policy", {"paused": True, "version": "7"}),
        ("post", "/v1/nodes/{node_id}/drain"): ("nodes.drain", {"draining": True}),
        ("post", "/v1/nodes"): ("nodes.register", {"name": "two", "slots": 1, "abilities": abilities}),
        ("post", "/v1/tokens/{kind}/rotate"): ("access.rotate", {"sha256": "0" * 64}),
    }
    changing = {
        (method, path)
        for path, methods in openapi_document()["paths"].items()
        for method in methods
        if method not in ("get", "head")
        and not path.startswith("/v1/nodes/{node_id}/")
        and path not in NOT_ACTIONS
    }
    changing |= {("post", "/v1/nodes/{node_id}/drain")}
    changing -= {("delete", "/v1/nodes/{node_id}")}
    assert changing == set(tried), "a route that changes something is recorded, or named as an exception"
    places = {
        "{task_id}": "add",
        "{group_id}": "g",
        "{session_id}": "add-0",
        "{node_id}": node.node_id,
        "{kind}": "control",
    }
    for (method, path), (name, body) in tried.items():
        before = await recorded(api)
        for place, value in places.items():
            path = path.replace(place, value)
        token = NODE if name == "nodes.register" else CONTROL
        answer = await api.ask(method.upper(), path, token, json=body)
        assert answer.status < 300, answer
        [new] = (await recorded(api))[len(before) :]
        assert (new.action, new.outcome, new.address) == (name, "done", "127.0.0.1")
        if token == CONTROL:
            assert (new.by, new.token) == ("token", FINGERPRINT)
        else:
            assert (new.by, new.token) == ("node token", sha256(NODE.encode()).hexdigest()[:12])


async def test_an_entry_says_what_it_was_about(api: Api) -> None:
    await api.submit("add", num_samples=3)
    await api.ask("PUT", "/v1/policy", json={"version": "12"})
    await api.ask("POST", "/v1/tasks/add/cancel")
    assert [one.detail for one in await recorded(api)] == [
        {"task_id": "add", "sessions": 3},
        {"version": "12"},
        {"task_id": "add", "sessions": 3},
    ]


async def test_what_is_refused_to_a_token_is_recorded_with_the_reason(api: Api) -> None:
    await api.ask("POST", "/v1/tasks/none/cancel")
    await api.ask("POST", "/v1/tasks", json={"instruction": 7, "secret": "do-not-keep"})
    cancel, submit = await recorded(api)
    assert (cancel.outcome, cancel.token, cancel.detail["status"]) == ("refused", FINGERPRINT, 404)
    assert cancel.detail["why"] == "there is no task 'none'"
    assert (submit.outcome, submit.detail["status"]) == ("refused", 422)
    assert "do-not-keep" not in submit.model_dump_json()


async def test_reads_and_queries_leave_nothing(api: Api) -> None:
    await api.submit()
    for path in ("/v1/tasks", "/v1/sessions", "/v1/actions", "/v1/tokens", "/v1/policy", "/v1/overview"):
        await api.get(path)
    body = {"task_ids": ["add"], "wait_s": 0}
    assert (await api.ask("POST", "/v1/results/query", json=body)).status == 200
    assert [one.action for one in await recorded(api)] == ["tasks.submit"]


async def test_refusals_without_a_token_are_recorded_up_to_a_rate(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(REFUSALS + 5):
        assert (await api.ask("GET", "/v1/tasks", "guessed-secret")).status == 401
    entries = await recorded(api)
    assert len(entries) == REFUSALS
    assert {(one.by, one.token, one.outcome, one.action) for one in entries} == {
        ("unknown", "", "refused", "tasks.newest")
    }
    assert not any("guessed" in one.model_dump_json() for one in entries)
    monkeypatch.setattr(actions, "REFUSALS_S", 0.0)
    await api.ask("POST", "/v1/nodes", "guessed-secret", json={"name": "x", "slots": 1})
    last = (await recorded(api))[-1]
    assert (last.action, last.detail["left_out"]) == ("nodes.register", 5)


async def test_logins_and_refused_logins_are_recorded(api: Api) -> None:
    page = {"x-polar-page": "1", "origin": api.server.base_url}
    await api.ask("POST", "/login", None, json={"token": "guessed-secret"}, headers=page)
    answer = await api.ask("POST", "/login", None, json={"token": CONTROL}, headers=page)
    cookie = answer.headers["Set-Cookie"].partition(";")[0]
    own = {**page, "cookie": cookie}
    await api.ask("PUT", "/v1/policy", None, json={"paused": True}, headers=own)
    await api.ask("POST", "/logout", None, headers=own)
    seen = [(one.action, one.by, one.token, one.outcome) for one in await recorded(api)]
    assert seen == [
        ("login.login", "unknown", "", "refused"),
        ("login.login", "login", FINGERPRINT, "done"),
        ("events.put_policy", "login", FINGERPRINT, "done"),
        ("login.logout", "login", FINGERPRINT, "done"),
    ]
    assert cookie.partition("=")[2] not in json.dumps((await api.get("/v1/actions"))["actions"])


async def test_a_change_and_its_entry_are_committed_together_or_not_at_all(desk: Desk) -> None:
    def fails(change: Change) -> None:
        change.detail["half"] = True
        raise RuntimeError("in the middle")

    UNDER_WAY.set(ActionUnderWay(Actor("token", "abc"), "tasks.submit"))
    with pytest.raises(RuntimeError):
        await desk.state.change(fails)
    assert await desk.rows("actions") == []
    await desk.submit()
    [entry] = await desk.rows("actions")
    assert (entry["action"], json.loads(entry["detail"])["task_id"]) == ("tasks.submit", "add")


async def test_the_record_keeps_the_newest(open_server: OpenServer, database: str) -> None:
    api = await open_server(database, actions_kept=100)
    for number in range(130):
        await api.server.state.record(ActionUnderWay(Actor("server"), f"n.{number}"))
    kept = await recorded(api)
    assert [one.action for one in kept] == [f"n.{number}" for number in range(30, 130)]
    page = await api.get(f"/v1/actions?after={kept[9].cursor}&limit=2")
    assert [one["action"] for one in page["actions"]] == ["n.40", "n.41"]
    assert page["cursor"] == kept[11].cursor
    older = await api.get(f"/v1/actions?before={kept[9].cursor}&limit=2")
    assert [one["action"] for one in older["actions"]] == ["n.37", "n.38"], "the newest of those before it"


async def test_entries_also_go_to_a_file_that_others_cannot_read(open_server: OpenServer, tmp_path: Path) -> None:
    file = tmp_path / "actions.jsonl"
    api = await open_server(action_log=str(file))
    await api.submit("one")
    file.rename(tmp_path / "actions.jsonl.1")
    await api.submit("two")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    [line] = file.read_text().splitlines()
    assert Action.model_validate_json(line) == (await recorded(api))[-1]


async def test_a_file_that_cannot_be_written_stops_nothing(
    open_server: OpenServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = await open_server(action_log=str(tmp_path / "missing" / "actions.jsonl"))
    await api.submit()
    assert len(await recorded(api)) == 1
    assert "cannot write" in caplog.text


def test_no_route_changes_the_record() -> None:
    assert set(openapi_document()["paths"]["/v1/actions"]) == {"get"}
