"""Retention beside clients: what a removal takes, what a forecast says, and what a reader learns of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from desk import Clock, Desk, config_of
from sqlalchemy import Connection, text

from polar.config import RetentionConfig
from polar.server.records import uploads
from polar.server.retention import fetched
from polar.server.retention.removal import (
    DAY_S,
    GRACE_S,
    Removal,
    forecast,
    remove_blobs,
    remove_events,
    remove_groups,
)
from polar.server.retention.run import remove_batch
from polar.server.routes.events import EventRoutes
from polar.server.state import State


@pytest.fixture
async def desk(database: str, clock: Clock, tmp_path: Path) -> AsyncGenerator[Desk]:
    """With blobs in a folder, on either database."""
    state = await State.open(config_of(database, blobs=f"folder:{tmp_path / 'blobs'}"), clock)
    yield Desk(state, clock)
    await state.close()


RULES = (
    (remove_groups, RetentionConfig(results_days=1)),
    (remove_blobs, RetentionConfig(blobs_days=1)),
    (remove_blobs, RetentionConfig(max_blob_bytes=0)),
)


async def ended(desk: Desk, task_id: str = "add", **fields: Any) -> None:
    await desk.submit(task_id, **fields)
    node = await desk.register(f"of-{task_id}")
    await desk.report(node, await desk.lease_one(node))


async def fetch(desk: Desk) -> None:
    page = await desk.results()
    await desk.state.change(fetched.mark_results, [entry.cursor for entry in page.results])


@pytest.mark.parametrize(("step", "rules"), RULES)
async def test_a_trainer_that_comes_late_has_time_to_ask_for_the_traces(
    desk: Desk, clock: Clock, step: Any, rules: RetentionConfig
) -> None:
    await ended(desk)
    clock.advance(3 * DAY_S)
    await fetch(desk)
    assert not (await remove_batch(desk.state, step, rules)).anything
    clock.advance(GRACE_S - 1)
    assert not (await remove_batch(desk.state, step, rules)).anything
    await uploads.read_blob(desk.state, "add-0")
    clock.advance(2)
    assert (await remove_batch(desk.state, step, rules)).blobs == 1


async def test_a_result_that_came_after_the_page_is_not_fetched(desk: Desk) -> None:
    await ended(desk, "first", group_id="g")
    page = await desk.groups(group_ids=["g"])
    await ended(desk, "second", group_id="g")
    await desk.state.change(fetched.mark_groups, [group.group_id for group in page.groups], page.cursor)
    times = {row["task_id"]: row["fetched"] for row in await desk.rows("results")}
    assert times["first"] is not None and times["second"] is None
    assert (await desk.rows("groups"))[0]["unfetched"] == 2  # the traces of the first have not been read


async def test_a_forecast_counts_only_what_may_go(desk: Desk, clock: Clock) -> None:
    await ended(desk)
    clock.advance(3 * DAY_S)
    rules = RetentionConfig(max_blob_bytes=0)
    assert await looked(desk, rules) == await removed(desk, rules) == (0, 0, 0)


async def test_a_forecast_counts_each_upload_once(desk: Desk, clock: Clock) -> None:
    """By each rule other ones: a whole group, an old upload of an open group, and the oldest of the rest."""
    await ended(desk, "whole")
    await ended(desk, "part", group_id="open")
    await desk.submit("waits", group_id="open", priority=-1)
    clock.advance(3 * DAY_S)
    for name in ("b", "c", "d"):
        await ended(desk, name)
        clock.advance(1)
    await fetch(desk)
    clock.advance(GRACE_S + 1)
    sizes = {row["session_id"]: row["size_bytes"] for row in await desk.rows("uploads")}
    rules = RetentionConfig(results_days=1, blobs_days=1, max_blob_bytes=sizes["c-0"] + sizes["d-0"])
    seen = await looked(desk, rules)
    assert seen == await removed(desk, rules)
    assert seen == (1, 3, sizes["whole-0"] + sizes["part-0"] + sizes["b-0"])


async def looked(desk: Desk, rules: RetentionConfig) -> tuple[int, int, int]:
    seen = await desk.state.read(forecast, desk.clock(), rules)
    return seen.groups, seen.blobs, seen.blob_bytes


async def removed(desk: Desk, rules: RetentionConfig) -> tuple[int, int, int]:
    done: list[Removal] = []
    for step in (remove_groups, remove_blobs):
        while (batch := await remove_batch(desk.state, step, rules)).anything:
            done.append(batch)
    return (
        sum(each.groups for each in done),
        sum(each.blobs for each in done),
        sum(each.blob_bytes for each in done),
    )


async def test_a_stream_that_stalled_says_what_it_missed(desk: Desk, clock: Clock) -> None:
    await ended(desk, "a")
    stream = EventRoutes(desk.state)._from(1)
    seen = len(await desk.rows("events"))
    for _ in range(seen):  # a comment, then all but the first
        await anext(stream)
    await ended(desk, "b")
    clock.advance(3 * DAY_S)
    await remove_batch(desk.state, remove_events, RetentionConfig(events_days=1))
    await ended(desk, "c")
    assert "event: gap" in await anext(stream)
    assert "event: gap" not in await anext(stream)
    await stream.aclose()


async def test_looking_for_old_groups_does_not_take_longer_with_more_young_ones(
    tmp_path: Path, clock: Clock
) -> None:
    state = await State.open(config_of(f"sqlite:///{tmp_path / 'server.db'}"), clock)
    desk = Desk(state, clock)
    await ended(desk, "old")
    clock.advance(3 * DAY_S)
    steps: list[int] = []
    for count in (20, 200):
        for number in range(count):
            await desk.submit(f"t{count}-{number}")
            await desk.cancel_task(f"t{count}-{number}")
        await fetch(desk)
        clock.advance(GRACE_S + 1)
        steps.append(await state.read(steps_of_looking, desk, RetentionConfig(results_days=2)))
    assert steps[1] < steps[0] * 2, steps
    await state.close()


def steps_of_looking(connection: Connection, desk: Desk, rules: RetentionConfig) -> int:
    raw: Any = connection.connection.driver_connection
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    raw.set_progress_handler(step, 10)
    forecast_groups(connection, desk, rules)
    raw.set_progress_handler(None, 0)
    return count


def forecast_groups(connection: Connection, desk: Desk, rules: RetentionConfig) -> None:
    from polar.server.retention.removal import _old_groups  # the query itself is what is looked at

    assert rules.results_days is not None
    query = _old_groups(desk.clock(), rules.results_days, unfetched=False)
    assert len(connection.execute(query.limit(50)).all()) <= 1


async def test_results_without_a_time_are_older_than_the_first_with_one(desk: Desk, clock: Clock) -> None:
    """An older Polar noted none."""
    await ended(desk, "before")
    await desk.state.change(lambda change: change.connection.execute(text("UPDATE outcomes SET at = NULL")))
    await fetch(desk)
    clock.advance(3 * DAY_S)
    rules = RetentionConfig(results_days=1)
    assert not (await remove_batch(desk.state, remove_groups, rules)).anything
    await ended(desk, "after")
    clock.advance(2 * DAY_S)
    assert (await remove_batch(desk.state, remove_groups, rules)).groups == 1


async def test_a_very_large_group_is_removed(tmp_path: Path, clock: Clock) -> None:
    """A database takes so many values in a statement and no more."""
    state = await State.open(config_of(f"sqlite:///{tmp_path / 'server.db'}"), clock)
    desk = Desk(state, clock)
    await desk.submit("add", num_samples=400)
    await desk.cancel_task("add")
    clock.advance(3 * DAY_S)

    def limited(connection: Connection) -> None:
        raw: Any = connection.connection.driver_connection
        raw.setlimit(9, 100)  # SQLITE_LIMIT_VARIABLE_NUMBER

    await state.read(limited)
    removal = await state.change(remove_groups, RetentionConfig(results_days=1), unfetched=True)
    assert removal.sessions == 400
    await state.close()
