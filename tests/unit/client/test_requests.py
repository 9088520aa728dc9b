"""Requests of a trainer, and the answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fake_rollout import TOKEN, FakeRollout

from polar.client import NotDrained, PolarClient, Retry, ServerError
from polar.client.draining import wait_for_drain
from polar.errors import ConfigError, PolarError
from polar.types import Drain, Policy, Span, Stage, TaskRequest, Trace, Trajectory, logprobs, loss_mask, token_ids

TASK = TaskRequest(task_id="add", instruction="add 2 and 2", num_samples=2, group_id="sums")


def a_trajectory(session_id: str) -> Trajectory:
    trace = Trace(
        session_id=session_id,
        prompt_ids=token_ids([1, 2]),
        response_ids=token_ids([3, 4, 5]),
        loss_mask=loss_mask([1, 1, 0]),
        logprobs=logprobs([-0.5, -0.25, 0.0]),
        spans=(Span("c1", 0, 2, "v7"),),
        reward=1.0,
    )
    return Trajectory(session_id, "prefix_merging", (trace,), statistics={"calls": 1})


async def test_a_task_is_submitted_and_looked_at(client: PolarClient) -> None:
    status = await client.submit(TASK)
    assert (status.task_id, status.num_samples, status.stages, status.done) == ("add", 2, {"QUEUED": 2}, False)
    assert await client.task("add") == status
    [listed] = await client.tasks()
    assert (listed.task_id, listed.session_ids) == ("add", ())
    assert [session.session_id for session in await client.sessions(task_id="add")] == ["add-0", "add-1"]
    assert (await client.session("add-1")).stage is Stage.QUEUED
    lease = await client.lease("add-1")
    assert (lease.session.index, lease.task) == (1, TASK)


async def test_sessions_can_be_asked_for_by_stage(client: PolarClient, rollout: FakeRollout) -> None:
    await client.submit(TASK)
    await rollout.finish("add-0")
    [done] = await client.sessions(stage=Stage.COMPLETED)
    assert done.session_id == "add-0"
    result = (await client.session("add-0")).result
    assert result and result.stage is Stage.COMPLETED


async def test_a_plain_dict_is_a_task_too(client: PolarClient, rollout: FakeRollout) -> None:
    status = await client.submit({"instruction": "hello", "harness": "shell"})
    assert status.task_id.startswith("task-")
    assert rollout.tasks[status.task_id].harness.name == "shell"


async def test_two_tasks_without_an_id_are_two_tasks(client: PolarClient, rollout: FakeRollout) -> None:
    first, second = await client.submit_many([{"instruction": "hello"}] * 2)
    assert first.task_id != second.task_id and len(rollout.tasks) == 2


async def test_many_are_answered_in_the_order_given(client: PolarClient) -> None:
    tasks = [TASK.model_copy(update={"task_id": f"t{number:02}"}) for number in range(30)]
    assert [status.task_id for status in await client.submit_many(tasks)] == [task.task_id for task in tasks]


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        ({"instruction": "x", "samples": 3}, "samples: Extra inputs"),
        ({}, "instruction: Field required"),
        ({"instruction": "x", "metadata": {"what": object()}}, "has no JSON form"),
    ],
)
async def test_what_is_no_task_is_refused_before_it_is_sent(
    client: PolarClient, rollout: FakeRollout, task: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        await client.submit(task)
    assert rollout.seen == []


async def test_one_bad_task_keeps_all_from_being_sent(client: PolarClient, rollout: FakeRollout) -> None:
    with pytest.raises(ConfigError):
        await client.submit_many([{"instruction": "fine"}, {"instruction": ""}])
    assert rollout.seen == []


async def test_one_refused_task_is_a_plain_error(client: PolarClient) -> None:
    bad = {"instruction": "x", "harness": "nobody"}
    with pytest.raises(ServerError, match="unknown harness 'nobody'"):
        await client.submit_many([{"instruction": "fine"}, bad])


async def test_a_trajectory_comes_back_as_it_was(client: PolarClient, rollout: FakeRollout) -> None:
    await client.submit(TASK)
    await rollout.finish("add-0", a_trajectory("add-0"))
    assert await client.trajectory("add-0") == a_trajectory("add-0")
    upload = await client.upload("add-0")
    assert upload.trajectory == a_trajectory("add-0") and b"COMPLETED" in upload.result


async def test_no_trajectory_is_a_404(client: PolarClient) -> None:
    await client.submit(TASK)
    with pytest.raises(ServerError, match="there is nothing yet") as caught:
        await client.trajectory("add-0")
    assert (caught.value.status, caught.value.detail) == (404, "there is nothing yet")


async def test_sessions_tasks_and_groups_are_cancelled(client: PolarClient) -> None:
    await client.submit(TASK)
    await client.submit(TASK.model_copy(update={"task_id": "more", "num_samples": 3}))
    assert await client.cancel_session("add-0") == 1
    assert await client.cancel_session("add-0") == 0
    assert await client.cancel_task("more") == 3
    assert await client.cancel_group("sums") == 1


async def test_the_policy_is_changed_one_side_at_a_time(client: PolarClient) -> None:
    assert await client.policy() == Policy()
    assert await client.pause() == Policy(paused=True, revision=1)
    assert await client.set_policy_version("v8") == Policy(version="v8", paused=True, updates=1, revision=2)
    assert await client.resume() == Policy(version="v8", updates=1, revision=3)
    assert (await client.set_policy_version(9)).version == "9", "a trainer counts its steps"


async def test_no_change_of_the_policy_needs_to_know_the_rest_of_it(
    client: PolarClient, rollout: FakeRollout
) -> None:
    await client.set_policy_version("v8")
    await client.pause()
    assert rollout.seen == ["PUT /v1/policy"] * 2, "so two trainers cannot undo each other"


class TestPauseAndWait:
    async def test_it_returns_when_nothing_is_generated_any_more(
        self, client: PolarClient, rollout: FakeRollout
    ) -> None:
        rollout.draining = [3, 1]
        assert (await client.pause(wait=True)).paused
        assert rollout.draining == [] and len([path for path in rollout.seen if "drain" in path]) == 3

    async def test_a_pause_that_takes_too_long_says_what_is_left(
        self, client: PolarClient, rollout: FakeRollout
    ) -> None:
        rollout.draining, rollout.unheard = [2] * 100_000, ["node-7"]
        with pytest.raises(
            NotDrained, match=r"2 generations .* not acknowledged by node-7; .* stays paused"
        ) as caught:
            await client.pause(wait=True, timeout_s=0.2)
        assert caught.value.drain and caught.value.drain.generating == 2
        assert (await client.policy()).paused

    async def test_a_server_that_does_not_answer_in_time(self) -> None:
        async def silent(*, wait_s: float) -> Drain:
            await asyncio.Event().wait()
            raise AssertionError(f"waited {wait_s} s for nothing")

        with pytest.raises(NotDrained, match="has not reported") as caught:
            await wait_for_drain(silent, timeout_s=0.05)
        assert caught.value.drain is None

    async def test_somebody_resumes_meanwhile(self, client: PolarClient, rollout: FakeRollout) -> None:
        rollout.draining = [2] * 100_000
        waiting = asyncio.create_task(client.pause(wait=True))
        while not any("drain" in path for path in rollout.seen):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await client.resume()
        with pytest.raises(NotDrained, match="another client resumed"):
            await waiting


async def test_nodes_are_listed(client: PolarClient) -> None:
    [node] = await client.nodes()
    assert (node.node_id, node.alive) == ("n1", True)


async def test_a_wrong_token_names_where_it_came_from(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLAR_CONTROL_TOKEN", raising=False)
    monkeypatch.setenv("POLAR_CONFIG_DIR", str(tmp_path))
    (tmp_path / "control-token").write_text("stale\n")
    async with PolarClient(url) as client:
        with pytest.raises(ServerError) as caught:
            await client.tasks()
    assert caught.value.status == 401
    assert "POLAR_CONTROL_TOKEN" in str(caught.value) and str(tmp_path / "control-token") in str(caught.value)
    async with PolarClient(url, "wrong") as client:
        with pytest.raises(ServerError, match="the token passed to it"):
            await client.tasks()


async def test_the_users_own_token_is_found(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_CONTROL_TOKEN", TOKEN)
    async with PolarClient(f"{url}/") as client:
        assert (await client.tasks(), client.url) == ([], url)


def test_without_a_token_the_error_says_where_one_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLAR_CONTROL_TOKEN", raising=False)
    monkeypatch.setenv("POLAR_CONFIG_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="POLAR_CONTROL_TOKEN"):
        PolarClient()


@pytest.mark.parametrize("url", ["localhost:8700", "ftp://host", "http://", "http://host:99999", "http://[::1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"write one like http://127.0.0.1:8700"):
        PolarClient(url, TOKEN)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a?b=1", "ä"])
async def test_an_id_cannot_change_the_path(client: PolarClient, rollout: FakeRollout, name: str) -> None:
    for ask in (client.task, client.session, client.trajectory, client.cancel_group):
        with pytest.raises(ServerError, match="is not a valid id") as caught:
            await ask(name)
        assert caught.value.status == 404
    assert rollout.seen == []


async def test_it_must_be_opened_first() -> None:
    with pytest.raises(PolarError, match="not open"):
        await PolarClient("http://127.0.0.1:1", TOKEN, retry=Retry(total_s=0)).tasks()
