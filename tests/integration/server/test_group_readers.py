"""Retention beside readers of groups: a page has several, and each is read when the trainer gets to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from desk import CONTROL, Clock, Desk, OpenServer, config_of
from test_http_storage import Served, a_tree

from polar.client import ServerError
from polar.config import RetentionConfig
from polar.server.records import uploads
from polar.server.retention import fetched
from polar.server.retention.removal import DAY_S, GRACE_S, Removal, remove_blobs, remove_groups
from polar.server.retention.run import Step, remove_batch
from polar.server.state import State
from polar.types import GcRequest

TOO_LARGE = RetentionConfig(max_blob_bytes=0)
TOO_OLD = RetentionConfig(results_days=1)


@pytest.fixture
async def desk(database: str, clock: Clock, tmp_path: Path) -> AsyncGenerator[Desk]:
    """With blobs in a folder, on either database."""
    state = await State.open(config_of(database, blobs=f"folder:{tmp_path / 'blobs'}"), clock)
    yield Desk(state, clock)
    await state.close()


async def ended(desk: Desk, *task_ids: str, **fields: Any) -> None:
    for task_id in task_ids:
        await desk.submit(task_id, **fields)
        node = await desk.register()
        await desk.report(node, await desk.lease_one(node))


async def send(desk: Desk, **wanted: Any) -> None:
    """A page of groups, as the route does."""
    page = await desk.groups(**wanted)
    names = [group.group_id for group in page.groups]
    await desk.state.change(fetched.mark_groups, names, page.cursor)


async def read(desk: Desk, *session_ids: str) -> None:
    for session_id in session_ids:
        await uploads.read_blob(desk.state, session_id)
        await desk.state.change(fetched.mark_sessions, [session_id])


async def go_on(desk: Desk, after: int, limit: int = 10, group_ids: list[str] | None = None) -> None:
    await desk.state.change(fetched.mark_groups_before, after, limit, group_ids)


async def remove(desk: Desk, step: Step, rules: RetentionConfig) -> Removal:
    return await remove_batch(desk.state, step, rules)


async def unread(desk: Desk) -> set[str]:
    """Sessions whose uploads stay until a client has read them."""
    return {row["session_id"] for row in await desk.rows("uploads") if row["fetched"] is None}


async def unfetched(desk: Desk) -> dict[str, int]:
    return {row["group_id"]: row["unfetched"] for row in await desk.rows("groups")}


async def test_a_trainer_may_train_for_long_between_the_groups_of_a_page(
    open_server: OpenServer, clock: Clock
) -> None:
    async with Served(await open_server(retention={"max_blob_bytes": 0})) as served:
        names = ["a", "b", "c", "d"]
        for name in names:
            await served.ended(name)
        async with aclosing(served.client.groups(task_ids=names)) as groups:
            for read_so_far, name in enumerate(names):
                group = await anext(groups)
                assert [session.trajectory for session in group.sessions] == [a_tree(f"{name}-0")]
                assert (await served.client.gc(GcRequest(dry_run=False))).blobs == 0, read_so_far
                clock.advance(GRACE_S + 1)
                assert (await served.client.gc(GcRequest(dry_run=False))).blobs == 1, read_so_far


async def test_groups_of_its_page_are_not_removed_before_it_gets_to_them(
    open_server: OpenServer, clock: Clock
) -> None:
    async with Served(await open_server(retention={"results_days": 1})) as served:
        for name in ("a", "b", "c"):
            await served.ended(name)
        clock.advance(2 * DAY_S)
        async with aclosing(served.client.groups()) as groups:
            for name in ("a", "b", "c"):
                group = await anext(groups)
                assert (group.group_id, len(group.sessions[0].traces)) == (name, 2)
                clock.advance(GRACE_S + 1)
                assert (await served.client.gc(GcRequest(dry_run=False))).groups == 1


async def test_a_reader_gets_past_groups_whose_uploads_were_removed(open_server: OpenServer, clock: Clock) -> None:
    async with Served(await open_server()) as served:
        await served.ended("old")
        old = await anext(served.client.groups(task_ids=["old"]))
        clock.advance(3 * DAY_S)
        await served.ended("new")
        assert (await served.client.gc(GcRequest(dry_run=False, blobs_days=1))).blobs == 1
        way_on = rf"group 'old'.*removed the upload of session old-0.*after={old.cursor} .*allow_gap=True"
        with pytest.raises(ServerError, match=way_on) as refused:
            await anext(served.client.groups())
        assert refused.value.status == 410
        assert (await anext(served.client.groups(after=old.cursor))).group_id == "new"
        async with aclosing(served.client.groups(allow_gap=True)) as groups:
            passed, new = await anext(groups), await anext(groups)
        assert passed.sessions[0].trajectory is None and passed.sessions[0].result == old.sessions[0].result
        assert new.sessions[0].trajectory == a_tree("new-0")


async def test_a_reader_that_wants_no_traces_lets_them_go_when_it_goes_on(
    open_server: OpenServer, clock: Clock
) -> None:
    async with Served(api := await open_server(retention={"max_blob_bytes": 0})) as served:
        for name in ("a", "b", "c", "d"):
            await served.ended(name)

        async def ask(after: int) -> int:
            answer = await api.ask("POST", "/v1/groups/query", CONTROL, json={"after": after, "limit": 2})
            assert answer.status == 200
            return answer.body["cursor"]

        async def removed() -> int:
            clock.advance(GRACE_S + 1)
            return (await served.client.gc(GcRequest(dry_run=False))).blobs

        first = await ask(0)
        assert await removed() == 0
        second = await ask(first)
        assert await removed() == 2
        assert await ask(second) == second
        assert await removed() == 2


@pytest.mark.parametrize(("step", "rules"), [(remove_blobs, TOO_LARGE), (remove_groups, TOO_OLD)])
async def test_a_group_that_was_sent_stays_until_the_last_traces_were_read_a_while_ago(
    desk: Desk, clock: Clock, step: Step, rules: RetentionConfig
) -> None:
    await desk.submit(num_samples=2)
    node = await desk.register()
    for lease in await desk.lease(node, 2):
        await desk.report(node, lease)
    await send(desk)
    clock.advance(3 * DAY_S)
    assert not (await remove(desk, step, rules)).anything
    await read(desk, "add-0", "add-1")
    clock.advance(GRACE_S - 1)
    assert not (await remove(desk, step, rules)).anything
    clock.advance(2)
    assert (await remove(desk, step, rules)).blobs == 2


async def test_a_reader_that_died_finds_what_was_sent_to_it(desk: Desk, clock: Clock) -> None:
    await ended(desk, "a", "b")
    await send(desk)
    await read(desk, "a-0")
    clock.advance(1000 * DAY_S)
    assert (await remove(desk, remove_blobs, TOO_LARGE)).blobs == 1
    assert (await remove(desk, remove_groups, TOO_OLD)).groups == 1
    await read(desk, "b-0")
    assert await unfetched(desk) == {"b": 0}


async def test_an_operator_may_remove_what_was_sent_and_never_read(desk: Desk, clock: Clock) -> None:
    await ended(desk, "a")
    await send(desk)
    clock.advance(3 * DAY_S)
    assert (await desk.state.change(remove_groups, TOO_OLD, unfetched=True)).blobs == 1


async def test_a_session_without_an_upload_is_fetched_with_its_page(desk: Desk, clock: Clock) -> None:
    await desk.submit(num_samples=2)
    node = await desk.register()
    await desk.report(node, await desk.lease_one(node))
    await desk.cancel_task("add")
    await send(desk)
    assert await unfetched(desk) == {"add": 1}
    await read(desk, "add-0")
    clock.advance(3 * DAY_S)
    assert (await remove(desk, remove_groups, TOO_OLD)).sessions == 2


async def test_a_cursor_passes_only_what_was_sent(desk: Desk) -> None:
    await ended(desk, "a", "b", "c")
    cursors = [group.cursor for group in (await desk.groups()).groups]
    await send(desk, limit=1)
    await go_on(desk, cursors[-1])
    assert await unread(desk) == {"b-0", "c-0"}
    assert await unfetched(desk) == {"a": 0, "b": 1, "c": 1}


async def test_a_cursor_passes_only_groups_that_its_reader_follows(desk: Desk) -> None:
    await ended(desk, "a", "b")
    last = (await desk.groups()).cursor
    await send(desk)
    await go_on(desk, last, group_ids=["b", "other"])
    assert await unread(desk) == {"a-0"}


async def test_a_reader_that_goes_on_in_the_middle_of_its_page_gets_the_rest_again(desk: Desk) -> None:
    await ended(desk, "a", "b", "c")
    cursors = [group.cursor for group in (await desk.groups()).groups]
    await send(desk)
    await go_on(desk, cursors[1])
    assert await unread(desk) == {"c-0"}


async def test_going_on_looks_at_one_page_and_not_at_the_whole_history(desk: Desk) -> None:
    await ended(desk, *(f"t{number}" for number in range(5)))
    last = (await desk.groups()).cursor
    await send(desk)
    await go_on(desk, last, limit=2)
    assert await unread(desk) == {"t0-0", "t1-0", "t2-0"}


async def test_a_group_that_is_open_again_is_counted_once(desk: Desk) -> None:
    await ended(desk, "first", group_id="g")
    await send(desk)
    await ended(desk, "second", group_id="g")
    await read(desk, "first-0")
    assert await unfetched(desk) == {"g": 1}
    await send(desk)
    await read(desk, "first-0", "second-0")
    assert await unfetched(desk) == {"g": 0}


async def test_whatever_is_read_in_whatever_order_is_counted_once(desk: Desk) -> None:
    """Several readers, by groups, by results, by a callback and by session."""

    def page_of(name: str) -> Callable[[], Awaitable[None]]:
        return lambda: send(desk, group_ids=[name])

    def passing_of(name: str, cursor: int) -> Callable[[], Awaitable[None]]:
        return lambda: go_on(desk, cursor, group_ids=[name])

    def result_of(cursor: int) -> Callable[[], Awaitable[None]]:
        return lambda: desk.state.change(fetched.mark_results, [cursor])

    def traces_of(name: str) -> Callable[[], Awaitable[None]]:
        return lambda: read(desk, f"{name}-0")

    for number, order in enumerate(permutations(range(4))):
        name = f"t{number}"
        await ended(desk, name)
        cursor = (await desk.results(group_id=name)).cursor
        ways = (page_of(name), passing_of(name, cursor), result_of(cursor), traces_of(name))
        for way in order:
            await ways[way]()
        assert (await unfetched(desk))[name] == 0, order
    assert await unread(desk) == set()
