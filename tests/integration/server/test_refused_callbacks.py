"""Callbacks to addresses they may not go to, over real HTTP: refused with the task, or tried once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from desk import Api, Clock, Desk, OpenServer
from targets import trainer

from polar.server.callbacks import delivery
from polar.server.records.callbacks import GIVE_UP_AFTER_S
from waiting import until

FORBIDDEN = [
    "http://127.0.0.1:9/done",
    "http://127.1:9/done",
    "http://2130706433:9/done",
    "http://[::1]:9/done",
    "http://[::ffff:127.0.0.1]:9/done",
    "http://10.0.0.1/done",
    "http://user:hunter2@169.254.169.254/done?token=hunter3",
]


@pytest.fixture
async def strict(open_server: OpenServer, database: str, monkeypatch: pytest.MonkeyPatch) -> Api:
    """A server on loopback whose callbacks may not go there."""
    monkeypatch.setattr(delivery, "LONGEST_NAP_S", 0.02)
    return await open_server(database, callback_loopback=False)


async def callback_rows(api: Api) -> list[dict[str, Any]]:
    return await Desk(api.server.state, Clock()).rows("callbacks")


async def cancelled(api: Api, url: str) -> None:
    """A task whose one session has a result."""
    await api.submit(callback_url=url)
    await api.ask("POST", "/v1/tasks/add/cancel")


async def test_a_task_with_a_forbidden_address_is_refused(strict: Api) -> None:
    for url in FORBIDDEN:
        answer = await strict.ask("POST", "/v1/tasks", json={"instruction": "x", "callback_url": url})
        assert answer.status == 422, url
        assert "callback_url" in answer.detail and "server.callback_networks" in answer.detail
        assert "hunter" not in answer.detail
    assert await strict.get("/v1/tasks") == []


async def test_a_name_that_resolves_to_a_forbidden_address_is_tried_once(
    strict: Api, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with trainer() as target:
        with caplog.at_level(logging.WARNING):
            await cancelled(strict, target.url.replace("127.0.0.1", "localhost"))
            await until(lambda: "giving up" in caplog.text)
        [row] = await callback_rows(strict)
        assert (row["tries"], row["due"], row["delivered"]) == (1, None, None)
        assert "server.callback_networks" in row["problem"] and "server.callback_networks" in caplog.text
        clock.advance(GIVE_UP_AFTER_S / 2)
        await asyncio.sleep(0.1)  # several looks at what is due
        assert (await callback_rows(strict), target.heard) == ([row], [])


async def test_an_address_that_was_allowed_when_its_task_came_is_given_up(
    open_server: OpenServer, database: str
) -> None:
    """The operator restarts the server with stricter settings."""
    async with trainer() as target:
        first = await open_server(database)
        await first.submit(callback_url=target.url)
        await first.server.stop()
        second = await open_server(database, callback_loopback=False)
        await second.ask("POST", "/v1/tasks/add/cancel")

        async def settled() -> bool:
            return all(row["due"] is None for row in await callback_rows(second))

        await until(settled)
        [row] = await callback_rows(second)
        assert (row["tries"], row["delivered"], target.heard) == (1, None, [])
        assert "127.0.0.1" in row["problem"]


async def test_a_listed_network_is_allowed_again(open_server: OpenServer, database: str) -> None:
    api = await open_server(database, callback_loopback=False, callback_networks=["127.0.0.0/8"])
    async with trainer() as target:
        await cancelled(api, target.url)
        await target.until(lambda: target.keys == ["add-0:1"])
