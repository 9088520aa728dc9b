"""Callbacks over real HTTP: delivered once for each key, retried, and safe from whoever is called."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from desk import Api, Clock, Desk, OpenServer
from targets import HOSTILE, hostile, trainer

from polar.config import ServerConfig
from polar.server.callbacks import delivery
from polar.server.callbacks.targets import CallbackTargets
from polar.server.records.callbacks import GIVE_UP_AFTER_S, LONGEST_PAUSE_S
from polar.types import SessionResult
from waiting import until


@pytest.fixture(autouse=True)
def short_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop looks at the tests' clock so often."""
    monkeypatch.setattr(delivery, "LONGEST_NAP_S", 0.02)


async def rows(api: Api) -> list[dict[str, Any]]:
    return await Desk(api.server.state, Clock()).rows("callbacks")


async def rows_when(api: Api, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    async def look() -> bool:
        found[:] = await rows(api)
        return enough(found)

    await until(look)
    return found


async def until_settled(api: Api) -> list[dict[str, Any]]:
    """All callbacks are delivered or given up."""
    return await rows_when(api, lambda found: all(row["due"] is None for row in found))


async def until_tried(api: Api, tries: int) -> dict[str, Any]:
    return (await rows_when(api, lambda found: all(row["tries"] >= tries for row in found)))[0]


async def end_with_results(api: Api, url: str, task_id: str = "add", num_samples: int = 1) -> None:
    await api.submit(task_id, num_samples=num_samples, callback_url=url)
    await api.ask("POST", f"/v1/tasks/{task_id}/cancel")


async def test_a_result_is_posted_with_its_key(api: Api) -> None:
    async with trainer() as target:
        await api.submit(callback_url=target.url)
        node = await api.register()
        await node.report(await node.lease_one(), score={"reward": 0.25})
        [row] = await until_settled(api)
        [(key, headers, body)] = target.heard
        assert (key, headers["X-Polar-Session"], headers["X-Polar-Task"]) == ("add-0:1", "add-0", "add")
        assert headers["Content-Type"] == "application/json"
        result = SessionResult.model_validate_json(body)
        assert result == (await api.results()).results[0].result
        assert (row["tries"], row["problem"]) == (1, None)


async def test_failures_are_tried_again_with_the_same_key(api: Api, clock: Clock) -> None:
    async with trainer(500, 302, 404) as target:
        await end_with_results(api, target.url)
        for tries in (1, 2, 3):
            row = await until_tried(api, tries)
            assert row["due"] > clock.now
            assert str([500, 302, 404][tries - 1]) in row["problem"]
            clock.now = row["due"]
        [row] = await until_settled(api)
        assert target.keys == ["add-0:1"] * 4
        assert row["delivered"] is not None
        assert all("elsewhere" not in headers.get("Host", "") for _, headers, _ in target.heard)


async def test_nothing_is_tried_before_it_is_due(api: Api, clock: Clock) -> None:
    async with trainer(500) as target:
        await end_with_results(api, target.url)
        row = await until_tried(api, 1)
        clock.now = row["due"] - 0.01
        await asyncio.sleep(0.1)
        assert len(target.heard) == 1


async def test_many_are_delivered_once_each_and_few_at_once(api: Api) -> None:
    async with trainer() as target:
        await end_with_results(api, target.url, num_samples=60)
        await until_settled(api)
        assert sorted(target.keys) == [f"add-{number:02}:1" for number in range(60)]
        assert target.most_at_once <= delivery.AT_ONCE_PER_TARGET


async def test_one_that_is_down_for_a_day_is_given_up_and_the_log_keeps_its_secrets(
    api: Api, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await end_with_results(api, "http://user:hunter2@127.0.0.1:1/done?token=hunter3")
    row = await until_tried(api, 1)
    clock.now = row["created"] + GIVE_UP_AFTER_S
    with caplog.at_level(logging.DEBUG):
        [row] = await until_settled(api)
    assert row["delivered"] is None
    assert "Cannot connect" in row["problem"]
    await until(lambda: "giving up" in caplog.text)
    assert "hunter" not in caplog.text + row["problem"]


@pytest.mark.parametrize("kind", sorted(HOSTILE))
async def test_a_hostile_target_does_not_harm_other_callbacks(
    api: Api, clock: Clock, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "TIMEOUT_S", 0.3)
    async with hostile(kind) as url, trainer() as target:
        await end_with_results(api, url, "bad", num_samples=12)
        await end_with_results(api, target.url, "good", num_samples=12)
        await target.until(lambda: len(target.heard) == 12)
        assert sorted(target.keys) == [f"good-{number:02}:1" for number in range(12)]
        assert (await api.ask("GET", "/healthz")).status == 200
        await api.server.stop()  # while the target is still there: nothing of the delivery may hang on it


async def test_an_endless_answer_counts_by_its_status(api: Api) -> None:
    async with hostile("endless") as url:
        await end_with_results(api, url)
        [row] = await until_settled(api)
        assert row["delivered"] is not None


async def test_slow_targets_do_not_take_all_places(api: Api) -> None:
    async with trainer() as slow, trainer() as quick:
        slow.hold = asyncio.Event()
        await end_with_results(api, slow.url, "slow", num_samples=20)
        await slow.until(lambda: len(slow.heard) == delivery.AT_ONCE_PER_TARGET)
        await end_with_results(api, quick.url, "quick", num_samples=20)
        await quick.until(lambda: len(quick.heard) == 20)
        assert len(slow.heard) == delivery.AT_ONCE_PER_TARGET
        slow.hold.set()
        await until_settled(api)


async def test_a_target_that_failed_is_tried_one_at_a_time(api: Api, clock: Clock) -> None:
    async with trainer(*[500] * 12) as target:
        await end_with_results(api, target.url, num_samples=12)
        await until_tried(api, 1)
        target.most_at_once = 0
        target.hold = asyncio.Event()
        clock.advance(LONGEST_PAUSE_S)
        await target.until(lambda: len(target.heard) == 13)
        await asyncio.sleep(0.1)
        assert target.most_at_once == 1
        target.hold.set()
        await until_settled(api)
        assert len(target.heard) == 24


async def test_what_was_not_delivered_when_the_server_stopped_is_delivered_by_the_next(
    open_server: OpenServer, database: str
) -> None:
    async with trainer() as target:
        target.hold = asyncio.Event()
        first = await open_server(database)
        await end_with_results(first, target.url, num_samples=6)
        await target.until(lambda: len(target.heard) == delivery.AT_ONCE_PER_TARGET)
        await first.server.stop()
        target.hold.set()
        target.hold = None
        second = await open_server(database)
        settled = await until_settled(second)
        assert all(row["delivered"] is not None for row in settled)
        assert set(target.keys) == {f"add-{number}:1" for number in range(6)}


async def test_a_database_that_is_away_for_a_moment_stops_no_callback(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = delivery.callbacks.next_due, iter([True, True])

    def sometimes(*arguments: Any) -> Any:
        if next(failures, False):
            raise delivery.StoreError("the database is away")
        return real(*arguments)

    monkeypatch.setattr(delivery.callbacks, "next_due", sometimes)
    async with trainer() as target:
        await end_with_results(api, target.url)
        await until_settled(api)
        assert target.keys == ["add-0:1"]


async def test_the_body_is_json_for_anybody(api: Api) -> None:
    async with trainer() as target:
        await end_with_results(api, target.url)
        await until_settled(api)
        parsed = json.loads(target.heard[0][2], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert parsed["session_id"] == "add-0"


async def test_an_answer_is_not_followed_anywhere() -> None:
    async with trainer(307) as target, aiohttp.ClientSession() as http:
        callback = delivery.Callback("s", "t", 1, target.url, "x", "{}")
        assert await delivery.send(http, callback, CallbackTargets(ServerConfig())) == "answered with status 307"
        assert len(target.heard) == 1
