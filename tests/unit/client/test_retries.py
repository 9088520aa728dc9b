"""Connections that break, servers that fail for a while, replies that get lost."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fake_rollout import TOKEN, FakeRollout, Fault

from polar.client import PolarClient, Retry, ServerError
from polar.client.retries import Retrier
from polar.types import TaskRequest

TASK = TaskRequest(task_id="add", instruction="add 2 and 2", metadata={"seeds": (1, 2)})


@pytest.mark.parametrize("faults", [["unheard"], ["unanswered"], [503], [500, "unheard", 502, "unanswered"]])
async def test_what_passes_is_tried_again(client: PolarClient, rollout: FakeRollout, faults: list[Fault]) -> None:
    await client.submit(TASK)
    rollout.faults = list(faults)
    assert (await client.task("add")).task_id == "add"
    rollout.faults = list(faults)
    assert (await client.pause()).paused
    rollout.faults = list(faults)
    await client.cancel_task("add")
    assert rollout.faults == [] and (await client.task("add")).done


@pytest.mark.parametrize("faults", [["unheard"], ["unanswered"], [503, "unanswered", "unheard"]])
@pytest.mark.parametrize("task", [TASK, {"instruction": "no id"}])
async def test_a_task_whose_reply_was_lost_is_one_task(
    client: PolarClient, rollout: FakeRollout, faults: list[Fault], task: TaskRequest | dict[str, str]
) -> None:
    rollout.faults = list(faults)
    status = await client.submit(task)
    assert list(rollout.tasks) == [status.task_id]
    assert status.session_ids == (f"{status.task_id}-0",)


async def test_an_id_that_was_taken_before_is_refused(client: PolarClient) -> None:
    await client.submit(TASK)
    with pytest.raises(ServerError, match="'add' is known") as caught:
        await client.submit(TASK)
    assert caught.value.status == 409


async def test_somebody_elses_task_is_not_taken_for_ones_own(client: PolarClient, rollout: FakeRollout) -> None:
    """The first try never arrived, so the 409 is not its echo."""
    await client.submit(TASK)
    rollout.faults = ["unheard"]
    with pytest.raises(ServerError, match="'add' is known"):
        await client.submit(TASK.model_copy(update={"instruction": "something else"}))


async def test_a_refusal_is_not_tried_again(client: PolarClient, rollout: FakeRollout) -> None:
    with pytest.raises(ServerError) as caught:
        await client.task("nobody")
    assert (caught.value.status, caught.value.attempts, len(rollout.seen)) == (404, 1, 1)


async def test_failures_are_borne_for_a_while_only(url: str, rollout: FakeRollout) -> None:
    rollout.faults = [500] * 100
    async with PolarClient(url, TOKEN, retry=Retry(total_s=0.01, first_s=0.004, longest_s=0.004)) as client:
        with pytest.raises(ServerError, match=r"failed \(500\): out of order") as caught:
            await client.tasks()
    assert caught.value.attempts == len(rollout.seen) >= 2


async def test_no_server_at_all_is_named_with_its_address() -> None:
    async with PolarClient("http://127.0.0.1:9", TOKEN, retry=Retry(total_s=0)) as client:
        with pytest.raises(ServerError, match=r"no answer from the server at http://127.0.0.1:9") as caught:
            await client.tasks()
    assert (caught.value.status, caught.value.attempts) == (None, 1)


BRIEF = Retry(unreachable=False, first_s=0.001)
"""As commands have it."""


async def test_a_broken_connection_is_worth_a_try_where_a_missing_server_is_not(
    url: str, rollout: FakeRollout
) -> None:
    rollout.faults = ["unheard", "unanswered"]
    async with PolarClient(url, TOKEN, retry=BRIEF) as client:
        assert await client.tasks() == []
    async with PolarClient("http://127.0.0.1:9", TOKEN, retry=BRIEF) as client:
        with pytest.raises(ServerError, match="connection refused") as caught:
            await client.tasks()
    assert (caught.value.unreachable, caught.value.attempts) == (True, 1)


async def test_a_restarted_server_is_found_again(client: PolarClient, rollout: FakeRollout) -> None:
    await client.submit(TASK)
    await rollout.stop()
    await rollout.start()
    assert (await client.task("add")).task_id == "add"


async def test_the_waits_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(delay_s: float) -> None:
        waits.append(delay_s)

    monkeypatch.setattr("asyncio.sleep", sleep)
    retrier = Retrier(Retry(first_s=1, longest_s=5))
    for _ in range(5):
        await retrier.wait(ServerError("away"))
    retrier.reset()
    await retrier.wait(ServerError("away"))
    assert waits == [1, 2, 4, 5, 5, 1]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"<html>bad gateway</html>", 404, "<html>bad gateway</html>"),
        (b"", 404, "no reason given"),
        (b'{"detail": [{"loc": ["limit"]}]}', 422, r'\[{"loc":\["limit"\]}\]'),
        (b"[]", 400, r"\[\]"),
        (b"not json", 200, "an unexpected answer"),
        (b'[{"task_id": "a"}]', 200, "an unexpected answer"),
        (b"", 302, r"refuses \(302\)"),
    ],
)
async def test_answers_of_something_else_are_shown(body: bytes, status: int, message: str) -> None:
    async def respond(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status, headers={"Location": "/elsewhere"})

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", respond)])
    async with TestServer(app) as server, PolarClient(str(server.make_url("")), TOKEN) as client:
        with pytest.raises(ServerError, match=message):
            await client.tasks()


async def test_a_damaged_blob_is_an_error_of_the_server() -> None:
    async def respond(_: web.Request) -> web.Response:
        return web.Response(body=b"\xc1")

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", respond)])
    async with TestServer(app) as server, PolarClient(str(server.make_url("")), TOKEN) as client:
        with pytest.raises(ServerError, match="an unexpected answer"):
            await client.trajectory("add-0")
