"""One result for each session, whatever comes when, in both databases; and how sessions are cancelled."""

from __future__ import annotations

import json

import pytest
from desk import LEASE_S, Desk, blob_of, result_of

from polar.server.errors import Conflict, Invalid, NotFound
from polar.server.records import cancel, events, results, sessions, uploads
from polar.types import Lease, SessionResult, Stage
from polar.types.packed import decompressed


async def leased(desk: Desk, **fields: object) -> tuple[str, Lease]:
    await desk.submit(**fields)  # type: ignore[arg-type]
    node = await desk.register()
    return node, await desk.lease_one(node)


async def test_a_result_ends_its_session(desk: Desk) -> None:
    node, lease = await leased(desk, group_id="g")
    await desk.report(node, lease, score={"reward": 1.0})
    row = await desk.row("add-0")
    assert (row["stage"], row["node_id"], row["lease_expires"]) == ("COMPLETED", node, None)
    [entry] = (await desk.results()).results
    assert entry.result == result_of(lease, score={"reward": 1.0})
    [event] = [row for row in await desk.rows("events") if row["kind"] == "result"]
    assert json.loads(event["data"]) == {"stage": "COMPLETED", "attempt": 1, "reward": 1.0}


async def test_the_upload_is_kept_to_the_byte(desk: Desk) -> None:
    node, lease = await leased(desk)
    blob = blob_of(result_of(lease))
    await desk.state.change(results.record, node, uploads.checked(blob, "add-0", 1))
    assert decompressed(await uploads.read_blob(desk.state, "add-0")) == blob


async def test_a_lost_acknowledgement_does_no_harm(desk: Desk) -> None:
    node, lease = await leased(desk)
    for reward in (1.0, 1.0, 0.0):
        await desk.report(node, lease, score={"reward": reward})
    [entry] = (await desk.results()).results
    assert entry.result.score is not None and entry.result.score.reward == 1.0


async def test_an_old_attempt_is_refused_before_and_after_the_new_one_ends(desk: Desk) -> None:
    node, old = await leased(desk)
    desk.clock.advance(LEASE_S)
    await desk.expire()
    with pytest.raises(Conflict, match="attempt 1"):
        await desk.report(node, old)
    new = await desk.lease_one(node)
    with pytest.raises(Conflict):
        await desk.report(node, old)
    await desk.report(node, new)
    with pytest.raises(Conflict):
        await desk.report(node, old)
    [entry] = (await desk.results()).results
    assert entry.result.attempt == 2


async def test_a_result_of_somebody_elses_session_is_refused(desk: Desk) -> None:
    _, lease = await leased(desk)
    other = await desk.register("other")
    with pytest.raises(Conflict):
        await desk.report(other, lease)
    waiting = lease.model_copy(update={"session": lease.session.model_copy(update={"attempt": 2})})
    with pytest.raises(Conflict):
        await desk.report(other, waiting)


async def test_the_servers_own_result_is_not_overruled_by_a_late_node(desk: Desk) -> None:
    node, lease = await leased(desk)
    await desk.cancel_task("add")
    desk.clock.advance(LEASE_S)
    await desk.expire()
    with pytest.raises(Conflict):
        await desk.report(node, lease)
    [entry] = (await desk.results()).results
    assert (entry.result.stage, entry.result.attempt) == (Stage.CANCELLED, 1)


async def test_an_unknown_session_is_unknown(desk: Desk) -> None:
    node, lease = await leased(desk)
    stranger = lease.model_copy(update={"session": lease.session.model_copy(update={"session_id": "x-0"})})
    with pytest.raises(NotFound):
        await desk.report(node, stranger)


@pytest.mark.parametrize("wrong", [{"task_id": "other"}, {"index": 3}])
async def test_a_result_of_another_task_or_sample_is_refused(desk: Desk, wrong: dict[str, object]) -> None:
    node, lease = await leased(desk)
    with pytest.raises(Invalid, match="sample 0 of task 'add'"):
        await desk.report(node, lease, **wrong)
    await desk.report(node, lease)


async def test_results_are_paged_by_cursor(desk: Desk) -> None:
    node = await desk.register()
    for name in ("a", "b"):
        await desk.submit(name, num_samples=3, group_id=f"group-{name}")
    for lease in await desk.lease(node, 6):
        await desk.report(node, lease)
    seen: list[str] = []
    cursor = 0
    while (page := await desk.results(cursor, limit=4)).results:
        seen += [entry.result.session_id for entry in page.results]
        assert page.cursor == page.results[-1].cursor > cursor
        cursor = page.cursor
    assert seen == ["a-0", "a-1", "a-2", "b-0", "b-1", "b-2"]
    assert page.cursor == cursor


async def test_results_are_found_by_task_and_by_group(desk: Desk) -> None:
    node = await desk.register()
    await desk.submit("a", group_id="g")
    await desk.submit("b", group_id="g")
    await desk.submit("c")
    for lease in await desk.lease(node, 3):
        await desk.report(node, lease)

    async def found(**only: str) -> list[str]:
        return [entry.result.session_id for entry in (await desk.results(**only)).results]

    assert await found(task_id="b") == ["b-0"]
    assert await found(group_id="g") == ["a-0", "b-0"]
    assert await found(task_id="c", group_id="g") == []
    assert await found(task_id="nobody") == []


async def test_there_is_no_upload_before_the_result_nor_for_one_the_server_made(desk: Desk) -> None:
    await desk.submit()
    for _ in range(2):
        with pytest.raises(NotFound, match="no upload"):
            await uploads.read_blob(desk.state, "add-0")
        await desk.cancel_task("add")
    with pytest.raises(NotFound, match="no session 'nobody'"):
        await uploads.read_blob(desk.state, "nobody")


async def test_what_waits_is_cancelled_at_once_what_runs_by_its_node(desk: Desk) -> None:
    await desk.submit(num_samples=3)
    node = await desk.register()
    running = await desk.lease_one(node)
    assert await desk.cancel_task("add") == 3
    assert [entry.result.session_id for entry in (await desk.results()).results] == ["add-1", "add-2"]
    assert await desk.lease(node, 5) == []
    assert (await desk.beat(node, running)).cancel == ("add-0",)
    await desk.report(node, running, stage="CANCELLED")
    assert await desk.cancel_task("add") == 0
    assert len((await desk.results()).results) == 3


async def test_what_finishes_before_it_hears_of_the_cancelling_keeps_its_result(desk: Desk) -> None:
    node, lease = await leased(desk)
    assert await desk.cancel_task("add") == 1
    assert await desk.cancel_task("add") == 1
    await desk.report(node, lease)
    [entry] = (await desk.results()).results
    assert entry.result.stage is Stage.COMPLETED


@pytest.mark.parametrize("way", ["expire", "hand_back"])
async def test_a_cancelled_session_does_not_run_again(desk: Desk, way: str) -> None:
    node, lease = await leased(desk)
    await desk.cancel_task("add")
    if way == "expire":
        desk.clock.advance(LEASE_S)
        await desk.expire()
    else:
        await desk.hand_back(node, lease)
    [entry] = (await desk.results()).results
    assert (entry.result.stage, entry.result.failure) == (Stage.CANCELLED, None)
    assert await desk.lease(node) == []


async def test_sessions_and_groups_are_cancelled_by_name(desk: Desk) -> None:
    await desk.submit("a", num_samples=2, group_id="g")
    await desk.submit("b", group_id="g")
    await desk.submit("c")
    assert await desk.state.change(cancel.cancel, "session", "a-1") == 1
    assert await desk.state.change(cancel.cancel, "group", "g") == 2
    assert (await desk.state.read(sessions.status, "c-0")).stage is Stage.QUEUED
    for kind in ("session", "task", "group"):
        with pytest.raises(NotFound, match=f"no {kind} 'nobody'"):
            await desk.state.change(cancel.cancel, kind, "nobody")


async def test_many_sessions_are_cancelled_together(desk: Desk) -> None:
    await desk.submit(num_samples=500)
    assert await desk.cancel_task("add") == 500
    assert len({entry.result.session_id for entry in (await desk.results()).results}) == 500


async def test_events_are_read_from_a_cursor_on(desk: Desk) -> None:
    for number in range(5):
        await desk.submit(f"t{number}")
    first = await desk.state.read(events.after, 0, 2)
    rest = await desk.state.read(events.after, first[-1].cursor)
    assert [event.task_id for event in first + rest] == [f"t{number}" for number in range(5)]
    assert await desk.state.read(events.after, rest[-1].cursor) == []


async def test_a_change_that_fails_leaves_no_event(desk: Desk) -> None:
    node, lease = await leased(desk)
    before = len(await desk.rows("events"))
    with pytest.raises(Invalid):
        await desk.report(node, lease, index=9)
    assert len(await desk.rows("events")) == before


async def test_a_reward_that_json_cannot_say_is_left_out_and_noted(desk: Desk) -> None:
    node, lease = await leased(desk)
    body = result_of(lease, score={"reward": 1.0, "metrics": {"good": 2.0, "bad": 0.0}}).model_dump_json()
    odd = SessionResult.model_validate_json(body.replace('"bad":0.0', '"bad":NaN'))
    upload = uploads.checked(blob_of_text(body.replace('"bad":0.0', '"bad":NaN')), "add-0", 1)
    assert odd.score is not None and "bad" in odd.score.metrics
    await desk.state.change(results.record, node, upload)
    [entry] = (await desk.results()).results
    assert entry.result.score is not None
    assert entry.result.score.metrics == {"good": 2.0}
    assert entry.result.score.reasons == ("metric bad was not a finite number",)


def blob_of_text(body: str) -> bytes:
    from polar.types import SessionUpload
    from polar.types.codec import encode

    return encode(SessionUpload(result=body.encode(), trajectory=None))
