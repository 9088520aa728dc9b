"""What retention removes, what it never removes, and that nothing is left behind."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from desk import Clock, Desk, blob_of, config_of, result_of
from sqlalchemy import Connection

from polar.config import RetentionConfig
from polar.server.errors import Gone, NotFound
from polar.server.records import callbacks, groups, tasks, uploads
from polar.server.records.results import take
from polar.server.retention import fetched, gaps
from polar.server.retention.orphans import YOUNG_S, move_one, orphans
from polar.server.retention.removal import (
    DAY_S,
    GRACE_S,
    Removal,
    forecast,
    remove_blobs,
    remove_events,
    remove_groups,
)
from polar.server.retention.run import Step, remove_batch, remove_orphans
from polar.server.state import State
from polar.types import Lease, Selection

RULES = RetentionConfig(results_days=2)


@pytest.fixture
async def desk(database: str, clock: Clock, tmp_path: Path) -> AsyncGenerator[Desk]:
    """With blobs in a folder, on either database."""
    state = await State.open(config_of(database, blobs=f"folder:{tmp_path / 'blobs'}"), clock)
    yield Desk(state, clock)
    await state.close()


async def ended(desk: Desk, task_id: str = "add", samples: int = 1, **fields: Any) -> list[Lease]:
    """A task of which every session has its result and its upload."""
    await desk.submit(task_id, num_samples=samples, **fields)
    node = await desk.register()
    leases = await desk.lease(node, samples)
    for lease in leases:
        await desk.report(node, lease)
    return leases


async def fetch(desk: Desk) -> None:
    page = await desk.results()
    await desk.state.change(fetched.mark_results, [entry.cursor for entry in page.results])


async def remove(desk: Desk, rules: RetentionConfig = RULES, step: Step = remove_groups) -> Removal:
    return await remove_batch(desk.state, step, rules)


def files_of(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "blobs").rglob("*") if path.is_file())


async def test_a_group_goes_with_all_its_rows_and_blobs(desk: Desk, clock: Clock, tmp_path: Path) -> None:
    await ended(desk, samples=3)
    await fetch(desk)
    assert len(files_of(tmp_path)) == 3
    assert await remove(desk) == Removal()  # too young
    clock.advance(3 * DAY_S)
    removal = await remove(desk)
    assert (removal.groups, removal.sessions, removal.blobs) == (1, 3, 3)
    assert files_of(tmp_path) == []
    for table in ("tasks", "sessions", "results", "outcomes", "groups", "uploads", "callbacks"):
        assert await desk.rows(table) == [], table
    [storage] = await desk.rows("storage")
    assert (storage["blobs"], storage["blob_bytes"]) == (0, 0)
    assert {row["stage"]: row["sessions"] for row in await desk.rows("stage_counts")}["COMPLETED"] == 0
    assert await remove(desk) == Removal()


async def test_nothing_goes_by_default(desk: Desk, clock: Clock) -> None:
    await ended(desk)
    await fetch(desk)
    clock.advance(1000 * DAY_S)
    for step in (remove_groups, remove_blobs, remove_events):
        assert await remove(desk, RetentionConfig(), step) == Removal()


async def test_what_no_client_has_fetched_stays(desk: Desk, clock: Clock) -> None:
    await ended(desk, samples=2)
    first = (await desk.results()).results[0]
    await desk.state.change(fetched.mark_results, [first.cursor])
    await desk.state.change(fetched.mark_results, [first.cursor])  # it read the page twice
    clock.advance(3 * DAY_S)
    assert await remove(desk) == Removal()
    assert len((await desk.results()).results) == 2
    await fetch(desk)
    clock.advance(GRACE_S + 1)
    assert (await remove(desk)).sessions == 2


async def test_an_operator_may_remove_what_no_client_wants(desk: Desk, clock: Clock) -> None:
    await ended(desk)
    clock.advance(3 * DAY_S)
    assert (await desk.state.change(remove_groups, RULES, unfetched=True)).groups == 1


async def test_an_open_group_stays_whole(desk: Desk, clock: Clock) -> None:
    await ended(desk, "first", group_id="g")
    await fetch(desk)
    await desk.submit("second", group_id="g")
    clock.advance(30 * DAY_S)
    assert await remove(desk) == Removal()
    node = await desk.register("two")
    await desk.report(node, await desk.lease_one(node))
    await fetch(desk)
    assert await remove(desk) == Removal()  # its last result is young
    clock.advance(3 * DAY_S)
    removal = await remove(desk)
    assert (removal.groups, removal.sessions) == (1, 2)


async def test_a_callback_under_way_keeps_its_group(desk: Desk, clock: Clock) -> None:
    await ended(desk, callback_url="http://127.0.0.1:1/done")
    await fetch(desk)
    clock.advance(3 * DAY_S)
    assert await remove(desk) == Removal()
    due = await desk.state.read(callbacks.next_due, clock(), (), ())
    assert due is not None
    await desk.state.change(callbacks.give_up, due, "refused")
    assert (await remove(desk)).groups == 1


async def test_a_delivered_callback_counts_as_fetched(desk: Desk, clock: Clock) -> None:
    await ended(desk, callback_url="http://127.0.0.1:1/done")
    due = await desk.state.read(callbacks.next_due, clock(), (), ())
    assert due is not None
    await desk.state.change(callbacks.delivered, due)
    clock.advance(3 * DAY_S)
    assert (await remove(desk)).groups == 1


async def test_a_batch_is_bounded_by_sessions(desk: Desk, clock: Clock) -> None:
    for number in range(4):
        await ended(desk, f"t{number}", samples=60)
    await fetch(desk)
    clock.advance(3 * DAY_S)
    assert [(await remove(desk)).sessions for _ in range(5)] == [60, 60, 60, 60, 0]


async def test_old_uploads_go_and_their_results_stay(desk: Desk, clock: Clock, tmp_path: Path) -> None:
    await ended(desk, "old")
    await ended(desk, "unread")
    await desk.state.change(fetched.mark_sessions, ["old-0"])
    clock.advance(2 * DAY_S)
    await ended(desk, "young")
    await fetch_one(desk, "young-0")
    rules = RetentionConfig(blobs_days=1)
    assert (await remove(desk, rules, remove_blobs)).blobs == 1
    assert not (await remove(desk, rules, remove_blobs)).anything
    with pytest.raises(Gone, match=r"retention.*old-0.*result stays"):
        await uploads.read_blob(desk.state, "old-0")
    for name in ("unread-0", "young-0"):
        await uploads.read_blob(desk.state, name)
    assert len((await desk.results()).results) == 3
    assert len(files_of(tmp_path)) == 2


async def fetch_one(desk: Desk, session_id: str) -> None:
    await desk.state.change(fetched.mark_sessions, [session_id])


async def test_the_oldest_uploads_go_while_all_are_too_large(desk: Desk, clock: Clock, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        await ended(desk, name)
        clock.advance(1)
    await fetch(desk)
    sizes = [row["size_bytes"] for row in await desk.rows("uploads")]
    rules = RetentionConfig(max_blob_bytes=sum(sizes) - 1)
    assert await remove(desk, rules, remove_blobs) == Removal()  # the trainer may be asking for their traces now
    clock.advance(GRACE_S + 1)
    assert (await remove(desk, rules, remove_blobs)).blobs == 1
    assert not (await remove(desk, rules, remove_blobs)).anything
    with pytest.raises(Gone):
        await uploads.read_blob(desk.state, "a-0")
    await uploads.read_blob(desk.state, "b-0")
    assert sum(path.stat().st_size for path in files_of(tmp_path)) == sum(sizes[1:])


async def test_removed_uploads_are_not_counted_twice_with_their_group(desk: Desk, clock: Clock) -> None:
    await ended(desk, samples=2)
    await fetch(desk)
    clock.advance(3 * DAY_S)
    await remove(desk, RetentionConfig(blobs_days=1), remove_blobs)
    removal = await remove(desk)
    assert (removal.sessions, removal.blobs) == (2, 0)
    [storage] = await desk.rows("storage")
    assert (storage["blobs"], storage["blob_bytes"]) == (0, 0)


async def test_old_events_go_in_order(desk: Desk, clock: Clock) -> None:
    await ended(desk, "old")
    before = len(await desk.rows("events"))
    clock.advance(3 * DAY_S)
    await ended(desk, "young")
    removal = await remove(desk, RetentionConfig(events_days=2), remove_events)
    assert removal.events == before
    left = await desk.rows("events")
    [storage] = await desk.rows("storage")
    assert storage["events_removed"] == left[0]["cursor"] - 1


async def test_a_forecast_says_what_a_removal_does(desk: Desk, clock: Clock) -> None:
    for name in ("a", "b"):
        await ended(desk, name, samples=2)
    await fetch(desk)
    await ended(desk, "unread")
    clock.advance(3 * DAY_S)
    rules = RetentionConfig(results_days=2, events_days=2)

    def look(connection: Connection, unfetched: bool = False) -> Removal:
        return forecast(connection, clock(), rules, unfetched)

    seen = await desk.state.read(look)
    done, events = await remove(desk, rules), await remove(desk, rules, remove_events)
    assert (seen.groups, seen.sessions, seen.blobs) == (done.groups, done.sessions, done.blobs) == (2, 4, 4)
    assert (seen.blob_bytes, seen.events) == (done.blob_bytes, events.events)
    assert (await desk.state.read(look)).groups == 0
    assert (await desk.state.read(look, unfetched=True)).groups == 1


async def test_a_client_learns_of_a_gap(desk: Desk, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        await ended(desk, name)
    cursors = [entry.cursor for entry in (await desk.results()).results]
    for name in ("a-0", "b-0"):
        await fetch_one(desk, name)
    clock.advance(3 * DAY_S)
    await remove(desk)

    async def look(after: int, *, allow_gap: bool = False) -> None:
        await desk.state.read(lambda connection: gaps.check_cursor(connection, after, allow_gap=allow_gap))

    await look(0)
    await look(cursors[1])
    with pytest.raises(Gone, match=rf"after cursor {cursors[0]}, up to cursor {cursors[1]}.*allow_gap"):
        await look(cursors[0])
    await look(cursors[0], allow_gap=True)


async def test_a_client_that_follows_many_groups_goes_on_when_old_ones_are_removed(
    desk: Desk, clock: Clock
) -> None:
    await ended(desk, "a")
    await desk.submit("b")
    last = (await desk.groups(group_ids=["a", "b"])).cursor
    await fetch(desk)
    clock.advance(3 * DAY_S)
    await remove(desk)
    page = await desk.groups(group_ids=["a", "b"], after=last)
    assert (page.groups, page.all_done) == ((), False)
    assert (await desk.selected(task_ids=["a", "b"], after=last)).results == ()
    with pytest.raises(Gone, match="retention has removed group 'a'"):
        await desk.groups(group_ids=["a", "b"])
    with pytest.raises(Gone, match="retention has removed task 'a'"):
        await desk.groups(task_ids=["a", "b"])
    assert (await desk.groups(group_ids=["a", "b"], allow_gap=True)).groups == ()
    with pytest.raises(NotFound, match="'never'"):
        await desk.groups(group_ids=["never"], after=last)
    for look in (tasks.status, groups.status):
        with pytest.raises(Gone, match="'a' with its results"):
            await desk.state.read(look, "a")


async def test_the_name_of_a_removed_task_can_be_used_again(desk: Desk, clock: Clock) -> None:
    await ended(desk, "a")
    await fetch(desk)
    clock.advance(3 * DAY_S)
    await remove(desk)
    before = (await desk.results()).cursor
    await ended(desk, "a")
    assert len((await desk.groups(group_ids=["a"])).groups) == 1
    [entry] = (await desk.results()).results
    assert entry.cursor > before
    assert await desk.rows("removed") == []


async def test_names_are_forgotten_in_the_end(desk: Desk, clock: Clock) -> None:
    for name in ("a", "b"):
        await ended(desk, name)
        await fetch(desk)
        clock.advance(3 * DAY_S)
        await remove(desk)
        clock.advance(gaps.REMEMBERED_S)
    assert {row["name"] for row in await desk.rows("removed")} == {"b"}


async def test_a_refused_result_leaves_a_blob_that_is_collected(
    desk: Desk, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [kept] = await ended(desk, "kept")
    await desk.submit("late")
    node = await desk.register("two")
    lease = await desk.lease_one(node)
    upload = uploads.checked(blob_of(result_of(lease)), "late-0", 1)
    await uploads.put_blob(desk.state, upload)  # and then the server is killed
    assert len(files_of(tmp_path)) == 2
    assert [page async for page in orphans(desk.state)] == []  # its result may be under way
    age = YOUNG_S + 1
    monkeypatch.setattr(clock, "now", max(path.stat().st_mtime for path in files_of(tmp_path)) + age)
    removal = await remove_orphans(desk.state)
    assert (removal.blobs, len(files_of(tmp_path))) == (1, 1)
    await uploads.read_blob(desk.state, kept.session.session_id)
    await take(desk.state, node, upload)  # the node tries again: the blob is written again
    await uploads.read_blob(desk.state, "late-0")


async def test_databases_that_share_a_store_leave_the_blobs_of_the_other(
    desk: Desk, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Desk(await State.open(config_of("sqlite://", blobs=f"folder:{tmp_path / 'blobs'}"), clock), clock)
    await ended(desk)
    await ended(other)
    age = YOUNG_S + 1
    monkeypatch.setattr(clock, "now", max(path.stat().st_mtime for path in files_of(tmp_path)) + age)
    for each in (desk, other):
        assert (await remove_orphans(each.state)).blobs == 0
    assert len(files_of(tmp_path)) == 2
    await other.state.close()


async def test_uploads_in_the_database_are_moved_to_the_store(database: str, clock: Clock, tmp_path: Path) -> None:
    before = Desk(await State.open(config_of(database, blobs="database"), clock), clock)
    await ended(before, samples=3)
    blobs = {name: await uploads.read_blob(before.state, name) for name in ("add-0", "add-1", "add-2")}
    assert await move_one(before.state) is False
    await before.state.close()
    after = Desk(await State.open(config_of(database, blobs=f"folder:{tmp_path / 'blobs'}"), clock), clock)
    assert await uploads.read_blob(after.state, "add-2") == blobs["add-2"]  # before it is moved
    assert [await move_one(after.state) for _ in range(4)] == [True, True, True, False]
    for name, blob in blobs.items():
        assert await uploads.read_blob(after.state, name) == blob
    assert len(files_of(tmp_path)) == 3
    assert {len(row["blob"]) for row in await after.rows("uploads")} == {0}
    [storage] = await after.rows("storage")
    assert (storage["blobs"], storage["blob_bytes"]) == (3, sum(map(len, blobs.values())))
    await after.state.close()


async def test_a_selection_says_whether_it_bears_gaps() -> None:
    assert not Selection().allow_gap
