"""Which callbacks are due, when, and when one is given up; in both databases."""

from __future__ import annotations

import json

from desk import Desk

from polar.server.records import callbacks
from polar.server.records.callbacks import FIRST_PAUSE_S, GIVE_UP_AFTER_S, LONGEST_PAUSE_S, Callback

URL = "http://trainer.test:9000/done?secret=1"
TARGET = "http://trainer.test:9000"


async def ended(desk: Desk, task_id: str = "add", num_samples: int = 1, url: str | None = URL) -> None:
    await desk.submit(task_id, num_samples=num_samples, callback_url=url)
    node = await desk.register()
    for lease in await desk.lease(node, num_samples):
        await desk.report(node, lease, score={"reward": 1.0})


async def due_now(desk: Desk, under_way: tuple[str, ...] = (), full: tuple[str, ...] = ()) -> Callback | None:
    return await desk.state.read(callbacks.next_due, desk.clock.now, under_way, full)


async def due(desk: Desk) -> Callback:
    callback = await due_now(desk)
    assert callback is not None
    return callback


async def test_a_result_has_a_callback_with_its_body_and_key(desk: Desk) -> None:
    await ended(desk)
    callback = await due(desk)
    assert (callback.url, callback.target, callback.key, callback.task_id) == (URL, TARGET, "add-0:1", "add")
    assert json.loads(callback.body)["score"]["reward"] == 1.0


async def test_a_task_without_an_address_has_no_callback(desk: Desk) -> None:
    await ended(desk, url=None)
    assert await due_now(desk) is None
    assert await desk.rows("callbacks") == []


async def test_results_the_server_makes_have_callbacks_too(desk: Desk) -> None:
    await desk.submit(num_samples=2, callback_url=URL)
    await desk.cancel_task("add")
    assert {row["session_id"] for row in await desk.rows("callbacks")} == {"add-0", "add-1"}
    assert json.loads((await due(desk)).body)["stage"] == "CANCELLED"


async def test_what_is_under_way_or_of_a_full_target_is_passed_over(desk: Desk) -> None:
    await ended(desk, "a", num_samples=2)
    desk.clock.advance(1)
    await ended(desk, "b", url="https://other.test/x")
    callback = await due_now(desk, under_way=("a-0",))
    assert callback is not None and callback.session_id == "a-1"
    callback = await due_now(desk, under_way=("a-0",), full=(TARGET,))
    assert callback is not None and callback.session_id == "b-0"
    assert await due_now(desk, under_way=("b-0",), full=(TARGET,)) is None


async def test_a_delivered_one_is_not_due_again(desk: Desk) -> None:
    await ended(desk)
    await desk.state.change(callbacks.delivered, await due(desk))
    desk.clock.advance(GIVE_UP_AFTER_S)
    assert await due_now(desk) is None
    [row] = await desk.rows("callbacks")
    assert (row["tries"], row["problem"]) == (1, None)
    assert row["delivered"] is not None


async def test_a_failed_one_is_due_later_and_later(desk: Desk) -> None:
    await ended(desk)
    pauses: list[float] = []
    for _ in range(6):
        callback = await due(desk)
        assert not await desk.state.change(callbacks.failed, callback, "status 500")
        assert await due_now(desk) is None
        next_due = await desk.state.read(callbacks.next_due_at, desk.clock.now)
        assert next_due is not None
        pauses.append(next_due - desk.clock.now)
        desk.clock.now = next_due
    for number, pause in enumerate(pauses):
        assert 0.5 * 2**number <= pause / FIRST_PAUSE_S <= 2**number


async def test_one_that_fails_for_a_day_is_given_up_with_its_reason(desk: Desk) -> None:
    await ended(desk)
    tries = 0
    while True:
        tries += 1
        if await desk.state.change(callbacks.failed, await due(desk), f"refused {tries}"):
            break
        next_due = await desk.state.read(callbacks.next_due_at, desk.clock.now)
        assert next_due is not None
        assert next_due - desk.clock.now <= LONGEST_PAUSE_S
        desk.clock.now = next_due
    [row] = await desk.rows("callbacks")
    assert (row["due"], row["delivered"], row["tries"], row["problem"]) == (None, None, tries, f"refused {tries}")
    assert 24 <= tries <= 80
    desk.clock.advance(GIVE_UP_AFTER_S)
    assert await due_now(desk) is None


async def test_a_reason_no_database_can_hold_is_made_plain(desk: Desk) -> None:
    await ended(desk)
    await desk.state.change(callbacks.failed, await due(desk), "bad\0 line \udcff 雪" + "x" * 10_000)
    [row] = await desk.rows("callbacks")
    assert row["problem"].startswith("bad\\0 line \\udcff \\u96ea")
    assert len(row["problem"]) == callbacks.MAX_PROBLEM


async def test_without_callbacks_nothing_is_due(desk: Desk) -> None:
    assert await desk.state.read(callbacks.next_due_at, desk.clock.now) is None
