"""What trainers do over HTTP: submit, look, cancel, read results; and how each wrong request is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from desk import NODE, Api, OpenServer, task_of

from polar.types import ResultPage, SessionStatus, Span, Stage, Trace, Trajectory, logprobs, loss_mask, token_ids
from polar.types.codec import decode, encode
from waiting import hang_limit

CONTROL_ROUTES = [
    ("POST", "/v1/tasks"),
    ("GET", "/v1/tasks"),
    ("GET", "/v1/tasks/add"),
    ("GET", "/v1/sessions"),
    ("GET", "/v1/sessions/add-0"),
    ("GET", "/v1/sessions/add-0/lease"),
    ("GET", "/v1/sessions/add-0/upload"),
    ("GET", "/v1/sessions/add-0/trajectory"),
    ("GET", "/v1/results"),
    ("POST", "/v1/sessions/add-0/cancel"),
    ("POST", "/v1/tasks/add/cancel"),
    ("POST", "/v1/groups/g/cancel"),
    ("GET", "/v1/groups/g"),
    ("POST", "/v1/groups/query"),
    ("POST", "/v1/results/query"),
    ("GET", "/v1/training"),
    ("GET", "/v1/training/r"),
    ("POST", "/v1/training/r/points"),
    ("GET", "/v1/sessions/add-0/live"),
    ("GET", "/v1/overview"),
    ("GET", "/v1/overview/sessions"),
    ("GET", "/v1/overview/groups"),
    ("GET", "/v1/overview/log"),
    ("GET", "/v1/events"),
    ("GET", "/v1/policy"),
    ("PUT", "/v1/policy"),
    ("GET", "/v1/policy/drain"),
    ("GET", "/v1/nodes"),
    ("GET", "/v1/actions"),
]


def trajectory_of(session_id: str) -> Trajectory:
    trace = Trace(
        session_id=session_id,
        prompt_ids=token_ids([1, 2]),
        response_ids=token_ids([3, 4]),
        loss_mask=loss_mask([1, 0]),
        logprobs=logprobs([-0.5, 0.0]),
        spans=(Span("c1", 0, 1),),
    )
    return Trajectory(session_id=session_id, builder="prefix_merging", traces=(trace,))


async def test_anybody_may_ask_whether_the_server_lives(api: Api) -> None:
    answer = await api.ask("GET", "/healthz", token=None)
    assert (answer.status, answer.body) == (200, {"status": "ok"})
    assert (await api.ask("GET", "/openapi.json", token=None)).status == 200
    page = await api.ask("GET", "/docs", token=None)
    assert page.status == 200 and "default-src 'none'" in page.headers["Content-Security-Policy"]


async def test_control_routes_want_the_control_token(api: Api) -> None:
    node = await api.register()

    async def is_refused(method: str, path: str, wrong: str | None) -> None:
        answer = await api.ask(method, path, wrong)
        assert answer.status == 401, (path, wrong, answer)
        assert "control-secret" not in answer.detail

    for method, path in CONTROL_ROUTES:
        wrongs = (None, "", "wrong", "contröl", NODE, node.credentials.key)
        await asyncio.gather(*(is_refused(method, path, wrong) for wrong in wrongs))  # each waits for a look
        basic = await api.ask(method, path, None, headers={"Authorization": "Basic control-secret"})
        assert basic.status == 401


async def test_a_task_goes_in_and_is_seen(api: Api) -> None:
    submitted = await api.submit("add", num_samples=2, group_id="g")
    assert submitted["session_ids"] == ["add-0", "add-1"]
    assert await api.get("/v1/tasks/add") == submitted
    assert submitted["waits"] == "there is no live node: `polar gateway` starts one"
    assert await api.get("/v1/tasks") == [{**submitted, "session_ids": [], "waits": ""}]
    listed = [SessionStatus.model_validate(one) for one in await api.get("/v1/sessions?task_id=add&stage=QUEUED")]
    assert [one.session_id for one in listed] == ["add-0", "add-1"]
    assert await api.get("/v1/sessions?stage=RUNNING") == []
    lease = await api.get("/v1/sessions/add-1/lease")
    assert (lease["session"]["index"], lease["task"]["group_id"]) == (1, "g")


async def test_a_task_without_an_id_gets_one(api: Api) -> None:
    first, second = await api.submit(None), await api.submit(None)
    assert first["task_id"] != second["task_id"]
    assert [task["task_id"] for task in await api.get("/v1/tasks?limit=1")] == [second["task_id"]]


async def test_a_known_task_id_is_a_conflict(api: Api) -> None:
    await api.submit("add")
    answer = await api.ask("POST", "/v1/tasks", json=task_of("add").model_dump(mode="json"))
    assert (answer.status, "add" in answer.detail) == (409, True)


WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"harness": "nope"}, "harness"),
    ({"runtime": {"name": "local", "options": {"nope": 1}}}, "runtime"),
    ({"evaluator": "no.such.module:Class"}, "evaluator"),
    ({"builder": "json:dumps"}, "builder"),
    ({"instruction": ""}, "instruction"),
    ({"surprise": 1}, "surprise"),
    ({"num_samples": 0}, "num_samples"),
    ({"task_id": "../etc"}, "task_id"),
    ({"task_id": "x" * 128}, "task_id"),
    ({"priority": 2**40}, "priority"),
    ({"files": {"../out": ""}}, "files"),
    ({"callback_url": "ftp://here/x"}, "callback_url"),
    ({"metadata": {"a": [[[[]]]]}, "callback_url": "http://"}, "callback_url"),
]


async def test_a_wrong_task_is_refused_by_the_name_of_its_field(api: Api) -> None:
    for fields, named in WRONG_FIELDS:
        answer = await api.ask("POST", "/v1/tasks", json={"instruction": "x", **fields})
        assert (answer.status, named in answer.detail) == (422, True), answer
    assert await api.get("/v1/tasks") == []


NO_TASKS = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"instruction": "\\ud800"}',
    b'{"instruction": "x", "metadata": {"a": NaN}}',
    b'{"instruction": "x", "metadata": {"a": 1e999}}',
    b'{"instruction": "x", "metadata": {"a": "\\ud800"}}',
    b'{"instruction": "x", "metadata": {"a": ' + b"[" * 100 + b"]" * 100 + b"}}",
    b'{"instruction": "x", "metadata": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
]


async def test_a_body_that_is_no_task_is_refused(api: Api) -> None:
    for body in NO_TASKS:
        answer = await api.ask("POST", "/v1/tasks", data=body, headers={"Content-Type": "application/json"})
        assert answer.status == 422, answer
        assert len(answer.detail) < 1000


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_refused_before_it_is_read(
    open_server: OpenServer, chunked: bool
) -> None:
    api = await open_server(max_task_bytes=10_000)
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        for _ in range(2000):
            sent += 1000
            yield b'"' + b"x" * 999
            await asyncio.sleep(0)

    body = endless() if chunked else b"x" * 10_001
    answer = await api.ask("POST", "/v1/tasks", data=body, headers={"Content-Type": "application/json"})
    assert (answer.status, "10000 bytes" in answer.detail) == (413, True)
    assert sent < 2_000_000
    await api.submit()


NOT_THERE = [
    "/v1/tasks/nobody",
    "/v1/sessions/nobody",
    "/v1/sessions/nobody/lease",
    "/v1/sessions/nobody/upload",
    "/v1/sessions/nobody/trajectory",
    "/v1/nowhere",
    "/v1/tasks/",
]


async def test_what_is_not_there_is_404(api: Api) -> None:
    for path in NOT_THERE:
        answer = await api.ask("GET", path)
        assert answer.status == 404, path
        assert answer.detail
    for kind in ("sessions", "tasks", "groups"):
        assert (await api.ask("POST", f"/v1/{kind}/x/cancel")).status == 404


OUT_OF_BOUNDS = [
    "/v1/tasks?limit=0",
    "/v1/tasks?limit=many",
    "/v1/tasks/%00",
    "/v1/tasks/.hidden",
    "/v1/sessions?stage=ASLEEP",
    "/v1/sessions?task_id=%2F",
    "/v1/results?after=-1",
    "/v1/results?after=99999999999999999999999",
    "/v1/results?wait_s=61",
    "/v1/results?wait_s=nan",
    "/v1/results?unknown=1",
    "/v1/events?after=x",
]


async def test_a_parameter_out_of_bounds_is_422(api: Api) -> None:
    for path in OUT_OF_BOUNDS:
        answer = await api.ask("GET", path)
        assert answer.status == 422, (path, answer)
        assert answer.detail


async def test_an_unserved_method_is_405(api: Api) -> None:
    assert (await api.ask("DELETE", "/v1/tasks")).status == 405


async def test_cancelling_counts_what_had_not_ended(api: Api) -> None:
    await api.submit("a", num_samples=3, group_id="g")
    assert (await api.ask("POST", "/v1/sessions/a-0/cancel")).body == {"cancelled": 1}
    assert (await api.ask("POST", "/v1/tasks/a/cancel")).body == {"cancelled": 2}
    assert (await api.ask("POST", "/v1/groups/g/cancel")).body == {"cancelled": 0}
    assert (await api.get("/v1/tasks/a"))["done"]


async def test_results_wait_for_the_first_one(api: Api) -> None:
    await api.submit("a")
    waiting = asyncio.create_task(api.results("?wait_s=60&task_id=a"))
    await api.submit("b")
    await api.ask("POST", "/v1/tasks/b/cancel")
    await api.ask("POST", "/v1/tasks/a/cancel")
    page = await waiting
    assert [entry.result.session_id for entry in page.results] == ["a-0"]
    rest = await api.results(f"?after={page.cursor}")
    assert (rest.results, rest.cursor) == ((), page.cursor)


async def test_results_that_do_not_come_are_an_empty_page(api: Api) -> None:
    assert await api.results("?wait_s=0.05&after=7") == ResultPage(results=(), cursor=7)


async def test_results_are_paged_and_filtered(api: Api) -> None:
    await api.submit("a", num_samples=3, group_id="g")
    await api.submit("b")
    await api.ask("POST", "/v1/tasks/b/cancel")
    await api.ask("POST", "/v1/tasks/a/cancel")
    assert len((await api.results("?limit=2")).results) == 2
    assert len((await api.results("?group_id=g")).results) == 3
    assert [entry.result.stage for entry in (await api.results("?task_id=b")).results] == [Stage.CANCELLED]


async def test_uploads_and_trajectories_come_out_as_they_went_in(api: Api) -> None:
    await api.submit()
    node = await api.register()
    lease = await node.lease_one()
    assert (await api.ask("GET", "/v1/sessions/add-0/upload")).status == 404
    trajectory = trajectory_of("add-0")
    assert (await node.report(lease, trajectory)).status == 204
    upload = await api.ask("GET", "/v1/sessions/add-0/upload")
    assert upload.headers["Content-Type"] == "application/vnd.msgpack"
    binary = await api.ask("GET", "/v1/sessions/add-0/trajectory")
    assert binary.headers["Content-Type"] == "application/vnd.msgpack"
    assert encode(decode(binary.body, Trajectory)) == encode(trajectory)
    plain = await api.ask("GET", "/v1/sessions/add-0/trajectory", headers={"Accept": "application/json"})
    assert plain.body["traces"][0]["response_ids"] == [3, 4]
    assert plain.body["traces"][0]["logprobs"] == [-0.5, 0.0]


async def test_a_session_without_a_trajectory_says_so(api: Api) -> None:
    await api.submit()
    node = await api.register()
    await node.report(await node.lease_one(), None, stage="FAILED")
    answer = await api.ask("GET", "/v1/sessions/add-0/trajectory")
    assert (answer.status, "no trajectory" in answer.detail) == (404, True)


async def test_a_trajectory_that_json_cannot_say_is_still_there_as_msgpack(api: Api) -> None:
    await api.submit()
    node = await api.register()
    odd = Trajectory(session_id="add-0", builder="b", statistics={"odd": {None: 1, (1, 2): 2}})
    await node.report(await node.lease_one(), odd)
    refused = await api.ask("GET", "/v1/sessions/add-0/trajectory", headers={"Accept": "application/json"})
    assert refused.status == 406
    assert (await api.ask("GET", "/v1/sessions/add-0/trajectory")).status == 200


async def test_the_policy_is_put_and_read(api: Api) -> None:
    assert await api.get("/v1/policy") == {"version": "", "paused": False, "updates": 0, "revision": 0}
    put = await api.ask("PUT", "/v1/policy", json={"version": "12", "paused": True})
    assert (put.status, put.body) == (200, {"version": "12", "paused": True, "updates": 1, "revision": 1})
    assert await api.get("/v1/policy") == put.body
    part = await api.ask("PUT", "/v1/policy", json={"paused": False})
    assert part.body == {"version": "12", "paused": False, "updates": 1, "revision": 2}, "the rest stays"


@pytest.mark.parametrize("body", [{"version": 12}, {"updates": 3}, {"version": "1", "revision": 9}])
async def test_invalid_policies_are_refused(api: Api, body: dict[str, Any]) -> None:
    assert (await api.ask("PUT", "/v1/policy", json=body)).status == 422
    assert (await api.get("/v1/policy"))["revision"] == 0


async def test_the_end_of_a_drain_is_reported_at_once(api: Api) -> None:
    node = await api.register()
    await api.ask("PUT", "/v1/policy", json={"paused": True})
    told = await api.get("/v1/policy/drain")
    assert (told["policy"]["paused"], told["generating"], told["unheard"]) == (True, 0, [node.node_id])
    waiting = asyncio.create_task(api.get("/v1/policy/drain?wait_s=60"))
    for generating in (2, 1, 0):
        assert not waiting.done()
        await node.ask("POST", "/heartbeat", json={"generating": generating, "revision": 1})
    async with hang_limit():
        assert (await waiting)["unheard"] == []
    [seen] = await api.get("/v1/nodes")
    assert (seen["generating"], seen["heard"]) == (0, True)
    assert (await api.ask("GET", "/v1/policy/drain?wait_s=61")).status == 422


async def test_who_waits_for_a_drain_hears_that_generation_was_resumed(api: Api) -> None:
    await api.register()
    await api.ask("PUT", "/v1/policy", json={"paused": True})
    waiting = asyncio.create_task(api.get("/v1/policy/drain?wait_s=60"))
    await api.get("/v1/policy/drain")
    await api.ask("PUT", "/v1/policy", json={"paused": False})
    async with hang_limit():
        assert (await waiting)["policy"]["paused"] is False


async def test_a_database_that_does_not_answer_is_503_and_a_defect_500(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a defect that holds a secret")

    monkeypatch.setattr("polar.server.records.policy.put", broken)
    defect = await api.ask("PUT", "/v1/policy", json={})
    assert (defect.status, "secret" in defect.detail) == (500, False)
    assert "a defect" in caplog.text
    await api.server.state.close()
    away = await api.ask("GET", "/v1/tasks")
    assert (away.status, "try again" in away.detail) == (503, True)


async def test_the_openapi_page_documents_refusals(api: Api) -> None:
    schema = (await api.ask("GET", "/openapi.json")).body
    submit = schema["paths"]["/v1/tasks"]["post"]
    assert {"201", "401", "409", "413", "422"} <= submit["responses"].keys()
    assert submit["security"]
    result = "/v1/nodes/{node_id}/sessions/{session_id}/attempts/{attempt}/result"
    assert {"204", "401", "404", "409", "413", "422"} <= schema["paths"][result]["put"]["responses"].keys()
