"""The client against the real rollout server; results come from a node that speaks raw HTTP."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing

import pytest

from fake_node import FakeNode, Service
from polar.client import PolarClient, ServerError, SyncPolarClient
from polar.errors import ConfigError
from polar.types import Policy, ResultEntry, Score, Stage, TaskRequest, TrainingPoint

HARNESS = {"name": "shell", "options": {"command": "true"}}
TASK = TaskRequest.model_validate(
    {"task_id": "add", "instruction": "add 2 and 2", "num_samples": 3, "group_id": "sums", "harness": HARNESS}
)


def ids(entries: list[ResultEntry]) -> list[str]:
    return [entry.result.session_id for entry in entries]


async def test_a_trainer_reads_results_while_others_still_run(client: PolarClient, node: FakeNode) -> None:
    status = await client.submit(TASK)
    assert status.session_ids == ("add-0", "add-1", "add-2")
    waiting = asyncio.to_thread(node.serve, 3)
    serving = asyncio.ensure_future(waiting)
    rewards = [entry.result.score async for entry in client.results(task_ids=[status.task_id])]
    await serving
    assert [score.reward for score in rewards if score] == [0.0, 0.25, 0.5]
    assert (await client.task("add")).done


async def test_a_reader_goes_on_by_its_cursor(client: PolarClient, node: FakeNode) -> None:
    await client.submit(TASK)
    node.lease(room=3)
    node.finish("add-1")
    async with aclosing(client.results(task_ids=["add"])) as results:
        first = await anext(results)
    node.finish("add-0")
    node.finish("add-2")
    rest = [entry async for entry in client.results(task_ids=["add"], after=first.cursor)]
    assert ids([first, *rest]) == ["add-1", "add-0", "add-2"]


async def test_several_tasks_a_group_and_everything(client: PolarClient, node: FakeNode) -> None:
    for name, group_id in (("a", "pair"), ("b", "pair"), ("c", None)):
        await client.submit(TASK.model_copy(update={"task_id": name, "num_samples": 1, "group_id": group_id}))
    node.lease(room=3)
    for session_id in ("b-0", "c-0", "a-0"):
        node.finish(session_id)
    assert ids([entry async for entry in client.results(task_ids=["a", "c"])]) == ["c-0", "a-0"]
    assert ids([entry async for entry in client.results(group_id="pair")]) == ["b-0", "a-0"]
    async with aclosing(client.results()) as results:
        assert ids([await anext(results) for _ in range(3)]) == ["b-0", "c-0", "a-0"]


async def test_groups_come_whole_while_others_still_run(client: PolarClient, node: FakeNode) -> None:
    for name, group_id in (("a", "pair"), ("b", "pair"), ("c", None)):
        await client.submit(TASK.model_copy(update={"task_id": name, "num_samples": 2, "group_id": group_id}))
    node.lease(room=6)
    for session_id in ("a-0", "c-0", "c-1", "b-0", "b-1"):
        node.finish(session_id, reward=float(session_id.endswith("0")))
    async with aclosing(client.groups(task_ids=["a", "c"])) as groups:
        first = await anext(groups)
        assert (first.group_id, first.rewards, first.has_contrast) == ("c", [1.0, 0.0], True)
        assert [round(item.advantages[0], 2) for item in first.credited()] == [1.0, -1.0]
        waiting = asyncio.ensure_future(anext(groups))
        node.finish("a-1")
        second = await waiting
        assert (second.group_id, len(second.sessions)) == ("pair", 4)
        assert await anext(groups, None) is None
    assert [group.group_id async for group in client.groups(task_ids=["a", "c"], after=first.cursor)] == ["pair"]
    status = await client.group("pair")
    assert (status.task_ids, status.done, status.cursor) == (("a", "b"), True, second.cursor)


async def test_groups_keep_sessions_without_traces_and_process_rewards(
    client: PolarClient, node: FakeNode
) -> None:
    await client.submit(TASK)
    node.lease(room=2)
    node.finish("add-0", score=Score(reward=0.0, call_rewards={"add-0.1.2": 1.0}))
    node.finish("add-1", reward=0.0)
    await client.cancel_session("add-2")
    [group] = [group async for group in client.groups(group_ids=["sums"])]
    assert [session.trajectory is None for session in group.sessions] == [False, False, True]
    stepped, plain = group.credited("mean")
    assert [round(value, 2) for value in stepped.advantages] == [-0.2, -0.2, -0.2, 0.0, 0.0, 0.0, 0.0, 0.8, 0.8]
    assert set(plain.advantages) == {-0.2, 0.0}


async def test_the_server_restarts_in_the_middle_of_the_groups(
    service: Service, client: PolarClient, node: FakeNode
) -> None:
    await client.submit(TASK)
    node.lease(room=3)
    async with aclosing(client.groups(task_ids=["add"])) as groups:
        following = asyncio.ensure_future(anext(groups))
        await asyncio.to_thread(service.stop)
        await asyncio.to_thread(service.start)
        for session_id in ("add-2", "add-0", "add-1"):
            node.finish(session_id)
        assert [session.result.index for session in (await following).sessions] == [0, 1, 2]


async def test_a_trainer_reports_its_curves(service: Service, client: PolarClient) -> None:
    assert await client.training_runs() == [] and await client.report_training("grpo-1", []) is None
    steps = [{"step": step, "at": 1.0, "metrics": {"reward": step / 2000}} for step in range(1500)]
    run = await client.report_training("grpo-1", steps)
    assert run is not None and (run.points, run.last_step) == (1500, 1499)
    await client.report_training("grpo-1", [TrainingPoint(step=5, phase="eval", metrics={"pass@1": 0.5})])
    points = await client.training("grpo-1")
    assert [point.step for point in points] == [*range(1500), 5] and points[-1].phase == "eval"
    page = await client.training_page("grpo-1", limit=1500)
    assert [point.metrics for point in await client.training("grpo-1", after=page.cursor)] == [{"pass@1": 0.5}]
    with pytest.raises(ServerError, match="no training run 'other'"):
        await client.training("other")
    with pytest.raises(ConfigError, match=r"not a training point: metrics\.loss"):
        await client.report_training("grpo-1", [{"step": 1, "metrics": {"loss": float("nan")}}])

    def plain() -> list[str]:
        with SyncPolarClient(service.url) as other:
            other.report_training("grpo-1", steps[:2])
            return [run.run_id for run in other.training_runs()]

    assert await asyncio.to_thread(plain) == ["grpo-1"]
    assert len(await client.training("grpo-1")) == 1501


async def test_a_trajectory_makes_the_round(client: PolarClient, node: FakeNode) -> None:
    await client.submit(TASK)
    node.lease()
    with pytest.raises(ServerError, match="no upload") as caught:
        await client.trajectory("add-0")
    assert caught.value.status == 404
    made = node.finish("add-0")
    assert await client.trajectory("add-0") == made
    upload = await client.upload("add-0")
    assert upload.trajectory == made
    assert [list(call.completion_ids) for call in upload.calls] == [[97, 98, 99], [100, 101]]
    [trace] = made.traces
    assert (trace.trainable_tokens, trace.policy_versions) == (5, ("v1",))


async def test_what_waits_is_cancelled_at_once_and_what_runs_by_its_node(
    client: PolarClient, node: FakeNode
) -> None:
    await client.submit(TASK)
    node.lease()
    assert await client.cancel_session("add-2") == 1
    assert await client.cancel_group("sums") == 2
    assert (await client.session("add-0")).cancel_requested
    assert node.beat("add-0", Stage.RUNNING) == ["add-0"]
    node.finish("add-0", stage=Stage.CANCELLED, score=None)
    stages = {entry.result.session_id: entry.result.stage async for entry in client.results(task_ids=["add"])}
    assert stages == dict.fromkeys(("add-0", "add-1", "add-2"), Stage.CANCELLED)
    assert await client.cancel_task("add") == 0
    with pytest.raises(ServerError, match="no group 'nobody'"):
        await client.cancel_group("nobody")


async def test_the_policy_reaches_the_nodes(client: PolarClient, node: FakeNode) -> None:
    assert await client.pause() == Policy(paused=True, revision=1)
    assert await client.set_policy_version("v2") == Policy(version="v2", paused=True, updates=1, revision=2)
    assert await client.policy() == Policy(version="v2", paused=True, updates=1, revision=2)
    assert await client.resume() == Policy(version="v2", updates=1, revision=3)
    [seen] = await client.nodes()
    assert (seen.node_id, seen.name, seen.alive) == (node.node_id, "fake:1", True)


async def test_sessions_and_tasks_are_listed(client: PolarClient, node: FakeNode) -> None:
    await client.submit(TASK)
    await client.submit({"instruction": "anything", "harness": HARNESS})
    newest, oldest = await client.tasks()
    assert (newest.num_samples, oldest.task_id, oldest.stages) == (1, "add", {"QUEUED": 3})
    assert [task.task_id for task in await client.tasks(limit=1)] == [newest.task_id]
    node.lease()
    node.beat("add-0", Stage.RUNNING)
    [running] = await client.sessions("add", stage=Stage.RUNNING)
    assert (running.session_id, running.node_id) == ("add-0", node.node_id)
    lease = await client.lease("add-0")
    assert (lease.session.stage, lease.task) == (Stage.RUNNING, TASK)


async def test_a_task_the_server_cannot_run_is_refused(client: PolarClient) -> None:
    with pytest.raises(ServerError, match="harness: unknown harness 'nobody'") as caught:
        await client.submit({"instruction": "x", "harness": "nobody"})
    assert caught.value.status == 422
    await client.submit(TASK)
    with pytest.raises(ServerError, match="choose another id") as caught:
        await client.submit(TASK)
    assert caught.value.status == 409


class LossyProxy:
    """Passes everything on, and breaks the connection instead of handing out the first replies."""

    def __init__(self, url: str, lose: int) -> None:
        self._host, self._port = url.removeprefix("http://").split(":")
        self._lose = lose
        self._pumps: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*self._pumps)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        self._pumps += [
            asyncio.create_task(self._pump(reader, up_writer)),
            asyncio.create_task(self._pump(up_reader, writer, replies=True)),
        ]

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool = False
    ) -> None:
        while data := await reader.read(65536):
            if replies and self._lose > 0:
                self._lose -= 1
                break
            writer.write(data)
        writer.close()


@pytest.mark.parametrize("task", [TASK, {"instruction": "no id of its own", "harness": HARNESS}])
async def test_a_lost_reply_leaves_one_task(
    service: Service, client: PolarClient, task: TaskRequest | dict[str, str]
) -> None:
    async with LossyProxy(service.url, lose=1) as address, PolarClient(address) as lossy:
        status = await lossy.submit(task)
    assert [task.task_id for task in await client.tasks()] == [status.task_id]
    assert status == await client.task(status.task_id)


async def test_a_taken_id_is_not_mistaken_for_a_lost_reply(service: Service, client: PolarClient) -> None:
    await client.submit(TASK)
    async with LossyProxy(service.url, lose=1) as address, PolarClient(address) as lossy:
        with pytest.raises(ServerError, match="choose another id"):
            await lossy.submit(TASK.model_copy(update={"instruction": "another"}))


async def test_the_server_restarts_in_the_middle_of_the_results(
    service: Service, client: PolarClient, node: FakeNode
) -> None:
    await client.submit(TASK)
    node.lease(room=3)
    node.finish("add-0")
    async with aclosing(client.results(task_ids=["add"])) as results:
        seen = [await anext(results)]
        following = asyncio.ensure_future(anext(results))
        await asyncio.to_thread(service.stop)
        await asyncio.to_thread(service.start)
        node.finish("add-1")
        seen.append(await following)
        node.finish("add-2")
        seen += [entry async for entry in results]
    assert ids(seen) == ["add-0", "add-1", "add-2"]


async def test_events_go_on_over_a_restart(service: Service, client: PolarClient, node: FakeNode) -> None:
    await client.submit(TASK.model_copy(update={"num_samples": 1}))
    seen: list[tuple[str, str | None]] = []
    async with aclosing(client.events()) as events:
        async for event in events:
            seen.append((event.kind, event.session_id))
            if event.kind == "task":
                await asyncio.to_thread(service.stop)
                await asyncio.to_thread(service.start)
                node.lease()
                node.finish("add-0")
            if event.kind == "result":
                break
    assert seen[-1] == ("result", "add-0")
    assert [kind for kind, _ in seen].count("task") == 1


def test_a_synchronous_trainer_and_its_nodes(service: Service, node: FakeNode) -> None:
    with SyncPolarClient(service.url) as client:
        status = client.submit(TASK)
        serving = threading.Thread(target=node.serve, args=(3,))
        serving.start()
        tokens = [
            sum(trace.trainable_tokens for trace in client.trajectory(entry.result.session_id).traces)
            for entry in client.results(task_ids=[status.task_id])
        ]
        serving.join()
    assert tokens == [5, 5, 5]


async def test_a_wrong_token_is_refused_with_the_way_out(service: Service) -> None:
    async with PolarClient(service.url, "stale") as client:
        for ask in (client.tasks(), client.submit(TASK), anext(client.events()), client.trajectory("add-0")):
            with pytest.raises(ServerError, match="the token passed to it") as caught:
                await ask
            assert caught.value.status == 401
