"""Whole groups, each as soon as it is done, with their trajectories."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from fake_rollout import TOKEN, FakeRollout

from polar.client import PolarClient, ServerError, SyncPolarClient
from polar.client.groups import GROUPS_PER_PAGE, TRAJECTORIES_AT_ONCE, follow_groups
from polar.credit.group import Group
from polar.errors import ConfigError
from polar.types import FinishedGroup, GroupPage, SessionResult, Stage, TaskRequest, Trajectory


async def submit(client: PolarClient, task_id: str, samples: int = 2, group_id: str | None = None) -> None:
    await client.submit(TaskRequest(task_id=task_id, instruction="x", num_samples=samples, group_id=group_id))


async def finish(rollout: FakeRollout, *session_ids: str) -> None:
    for session_id in session_ids:
        await rollout.finish(session_id, Trajectory(session_id, "prefix_merging"))


def members(group: Group) -> list[str]:
    return [session.result.session_id for session in group.sessions]


async def test_groups_come_whole_in_the_order_in_which_they_are_done(
    client: PolarClient, rollout: FakeRollout
) -> None:
    for task_id in ("a", "b", "other"):
        await submit(client, task_id)
    await finish(rollout, "a-0", "b-1", "other-0", "other-1", "b-0")
    found: list[Group] = []
    async with asyncio.TaskGroup() as playing:
        async for group in client.groups(task_ids=["a", "b"]):
            found.append(group)
            if len(found) == 1:
                playing.create_task(finish(rollout, "a-1"))
    assert [(group.group_id, sorted(members(group))) for group in found] == [
        ("b", ["b-0", "b-1"]),
        ("a", ["a-0", "a-1"]),
    ]
    assert all(session.trajectory is not None for group in found for session in group.sessions)


async def test_a_group_of_several_tasks_waits_for_all_of_them(client: PolarClient, rollout: FakeRollout) -> None:
    await submit(client, "a", 1, "pair")
    await submit(client, "b", 1, "pair")
    await finish(rollout, "a-0")
    waiting = asyncio.ensure_future(anext(client.groups(task_ids=["a"])))
    await rollout.held()
    await finish(rollout, "b-0")
    assert members(await waiting) == ["a-0", "b-0"]
    status = await client.group("pair")
    assert (status.task_ids, status.sessions, status.done) == (("a", "b"), 2, True)


async def test_a_reader_goes_on_after_the_cursor_of_a_group(client: PolarClient, rollout: FakeRollout) -> None:
    names = [f"t{number}" for number in range(GROUPS_PER_PAGE + 2)]
    for name in names:
        await submit(client, name, 1)
        await finish(rollout, f"{name}-0")
    async with aclosing(client.groups(group_ids=names)) as groups:
        first = await anext(groups)
    rest = [group async for group in client.groups(group_ids=names, after=first.cursor)]
    assert [group.group_id for group in (first, *rest)] == names
    assert [group async for group in client.groups(group_ids=names, after=rest[-1].cursor)] == []


async def test_without_tasks_there_is_no_end(client: PolarClient, rollout: FakeRollout) -> None:
    await submit(client, "a", 1)
    await finish(rollout, "a-0")
    async with aclosing(client.groups()) as groups:
        assert (await anext(groups)).group_id == "a"
        waiting = asyncio.ensure_future(anext(groups))
        await submit(client, "later", 1)
        await finish(rollout, "later-0")
        assert (await waiting).group_id == "later"


async def test_no_tasks_have_no_groups_and_unknown_ones_are_refused(client: PolarClient) -> None:
    assert [group async for group in client.groups(task_ids=[])] == []
    with pytest.raises(ServerError, match="no task 'nobody'"):
        await anext(client.groups(task_ids=["nobody"]))
    with pytest.raises(ServerError, match="no group 'nobody'"):
        await anext(client.groups(group_ids=["nobody"]))


async def test_a_session_without_traces_is_in_its_group_without_them(
    client: PolarClient, rollout: FakeRollout
) -> None:
    await submit(client, "a")
    await finish(rollout, "a-0")
    await rollout.finish("a-1", stage=Stage.CANCELLED)
    group = await anext(client.groups(task_ids=["a"]))
    assert [session.trajectory is None for session in group.sessions] == [False, True]
    assert group.sessions[1].traces == () and group.credited() == []


async def test_trajectories_are_fetched_for_the_group_that_is_asked_for(
    client: PolarClient, rollout: FakeRollout
) -> None:
    samples = 3 * TRAJECTORIES_AT_ONCE
    for name in ("a", "b"):
        await submit(client, name, samples)
        await finish(rollout, *(f"{name}-{index}" for index in range(samples)))
    async with aclosing(client.groups(task_ids=["a", "b"])) as groups:
        await anext(groups)
    fetched = [request for request in rollout.seen if request.endswith("/trajectory")]
    assert len(fetched) == samples and all("/a-" in request for request in fetched)


async def test_several_trajectories_are_fetched_at_once_and_not_all() -> None:
    active, most = 0, 0

    async def read_trajectory(session_id: str) -> Trajectory:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(0)
        active -= 1
        return Trajectory(session_id, "b")

    def result(index: int) -> SessionResult:
        return SessionResult(session_id=f"a-{index}", task_id="a", index=index, attempt=1, stage=Stage.COMPLETED)

    async def read(_: int) -> GroupPage:
        found = FinishedGroup(group_id="a", cursor=40, results=tuple(map(result, range(40))))
        return GroupPage(groups=(found,), cursor=40, all_done=True)

    (group,) = [group async for group in follow_groups(read, read_trajectory, 0)]
    assert members(group) == [f"a-{index}" for index in range(40)]
    assert most == TRAJECTORIES_AT_ONCE


async def test_a_server_that_fails_at_a_trajectory_is_an_error(url: str, rollout: FakeRollout) -> None:
    async with PolarClient(url, TOKEN) as client:
        await submit(client, "a", 1)
        await finish(rollout, "a-0")
        async with aclosing(client.groups(task_ids=["a"])) as groups:
            await anext(groups)
        async with aclosing(client.groups(task_ids=["a"])) as groups:
            rollout.fail_trajectories = 403
            with pytest.raises(ServerError, match="out of order") as caught:
                await anext(groups)
            assert caught.value.status == 403


async def test_a_group_that_lost_traces_is_named_with_the_way_past_it(
    client: PolarClient, rollout: FakeRollout
) -> None:
    for name in ("old", "new"):
        await submit(client, name)
        await finish(rollout, f"{name}-0", f"{name}-1")
    rollout.removed = {"old-1"}
    with pytest.raises(ServerError) as caught:
        await anext(client.groups())
    assert caught.value.status == 410
    for part in ("group 'old'", "removed the upload of old-1", "after=2 ", "allow_gap=True"):
        assert part in str(caught.value)
    assert (await anext(client.groups(after=2))).group_id == "new"


async def test_who_bears_gaps_gets_the_results_and_the_traces_that_are_left(
    client: PolarClient, rollout: FakeRollout
) -> None:
    for name in ("old", "part", "new"):
        await submit(client, name)
        await finish(rollout, f"{name}-0", f"{name}-1")
    rollout.removed = {"old-0", "old-1", "part-1"}
    names = ["old", "part", "new"]
    found = [group async for group in client.groups(task_ids=names, allow_gap=True)]
    assert [group.group_id for group in found] == names
    assert members(found[1]) == ["part-0", "part-1"]
    has_traces = [[session.trajectory is not None for session in group.sessions] for group in found]
    assert has_traces == [[False, False], [True, False], [True, True]]


async def test_bearing_gaps_hides_no_other_failure(url: str, rollout: FakeRollout) -> None:
    async with PolarClient(url, TOKEN) as client:
        await submit(client, "a", 1)
        await finish(rollout, "a-0")
        rollout.fail_trajectories = 403
        with pytest.raises(ServerError, match="out of order"):
            await anext(client.groups(allow_gap=True))


@pytest.mark.parametrize("ids", ["task_ids", "group_ids"])
async def test_more_ids_than_a_request_takes_are_refused_with_the_way_out(client: PolarClient, ids: str) -> None:
    many: dict[str, Any] = {ids: [f"t{number}" for number in range(10_001)]}
    with pytest.raises(ConfigError, match=rf"10001 {ids}, .*10000 at once.*parts.*group_id.*after="):
        await anext(client.groups(**many))


async def test_a_program_without_an_event_loop_reads_the_same(url: str, rollout: FakeRollout) -> None:
    def trainer() -> list[str]:
        with SyncPolarClient(url, TOKEN) as client:
            client.submit({"task_id": "a", "instruction": "x"})
            client.cancel_task("a")
            assert client.group("a").done
            return [group.group_id for group in client.groups(task_ids=["a"])]

    assert await asyncio.to_thread(trainer) == ["a"]
