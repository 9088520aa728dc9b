"""verifiers' own types, wire and environment on the sessions of the bridge. Collected where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from stored_calls import LAST, PROMPT, REPLY, RESULT, called_session, session_calls, untaught_session
from stored_groups import StoredClient, a_group
from test_environment_examples import PRIME
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.episode import Episode
from verifiers.v1.serve.client import EnvClient
from verifiers.v1.serve.delta import DeltaStreamer, EpisodeAssembly, TraceSummary
from verifiers.v1.serve.server import EnvServer
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from polar.client.retries import ServerError
from polar.credit.advantages import FinishedSession
from polar.credit.group import Group
from polar.trainers.bridges.config import BridgeConfig

pytestmark = [pytest.mark.check, pytest.mark.filterwarnings("ignore")]

CONTEXT = ModelContext(model="m", client=EvalClientConfig())
PACKAGE = """
from typing import Any
import verifiers.v1 as vf
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.prime_rl import environment

class Row(vf.TaskData):
    answer: str = ""
    polar: dict[str, Any] = {}

class Words(vf.Taskset[vf.Task[Row, vf.State, vf.TaskConfig]]):
    def load(self):
        row = Row(prompt="Do it.", system_prompt="Be brief.", answer="42", polar={"files": {"a.txt": "b"}})
        yield vf.Task[Row, vf.State, vf.TaskConfig](row, self.config.task)

class PolarWords(environment(BridgeConfig(task={"harness": "pi"}))):
    hooks = []

    async def setup(self, agents):
        self.hooks.append("setup")

    async def finalize(self, task, episode):
        self.hooks.append("finalize")
        episode.traces[0].record_metric("answer", float(task.data.answer))

__all__ = ["Words", "PolarWords"]
"""


class CallsClient(StoredClient):
    calls = tuple(session_calls())


class LongClient(CallsClient):
    """Its sessions do not end."""

    def __init__(self) -> None:
        super().__init__(Group("t", (called_session(),)))
        self.under_way, self.was_cancelled = asyncio.Event(), asyncio.Event()

    async def groups(self, **_: Any) -> AsyncGenerator[Any]:  # type: ignore[override]
        self.under_way.set()
        await asyncio.Event().wait()
        yield

    async def cancel_task(self, task_id: str) -> int:
        self.was_cancelled.set()
        return await super().cancel_task(task_id)


class AwayClient(StoredClient):
    asked = 0

    async def submit_many(self, tasks: Any) -> Any:
        self.asked += 1
        raise ServerError("no server at http://127.0.0.1:8700")


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package as prime-rl loads it: one taskset and one environment, exported by `__all__`."""
    (tmp_path / "polar_hooked_words.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)


def an_environment(monkeypatch: pytest.MonkeyPatch, client: StoredClient, **fields: Any) -> Any:
    monkeypatch.setattr(BridgeConfig, "client", lambda _: client)
    return load_environment(resolve_env_config({"taskset": {"id": "polar_hooked_words"}, **fields}))


async def played(env: Any, on_trace: Any = None) -> Episode:
    (slot,) = env.slots(next(iter(env.taskset)))
    return await env.run_slot(slot, CONTEXT, on_trace=on_trace)


def client_of(session: FinishedSession) -> CallsClient:
    return CallsClient(Group("t", (session,)))


async def test_an_episode_has_one_trace_whose_branches_are_the_training_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = client_of(called_session(0.5))
    episode = await played(an_environment(monkeypatch, client))
    assert isinstance(episode, Episode) and episode.ok and episode.env.id == "polar_hooked_words"
    (trace,) = episode.traces
    assert trace.reward == 0.5 and trace.ok and trace.is_completed and not trace.is_truncated
    assert trace.agent.trainable and trace.info["polar"]["session_id"] == "t-0"
    found = {tuple(branch.token_ids): branch for branch in trace.branches}
    main = found[(*PROMPT, *REPLY, *RESULT, *LAST)]
    assert main.sampled_mask == [False] * 3 + [True] * 2 + [False] * 2 + [True] * 3
    spread = main.logprobs
    assert [value != 0.0 for value in spread] == main.sampled_mask
    assert spread[3] == session_calls()[0].logprobs[0], "not rounded"
    assert not any(found[(9, 16, 17)].sampled_mask)
    (task,) = client.submitted
    assert task.files == {"a.txt": "b"} and task.harness.name == "pi"
    assert task.instruction == "Be brief.\n\nDo it.", "the task's system prompt, then its prompt"


async def test_hooks_of_the_environment_run_and_see_the_rows_own_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    env = an_environment(monkeypatch, client_of(called_session()))
    env.hooks.clear()
    (trace,) = (await played(env)).traces
    assert env.hooks == ["setup", "finalize"]
    assert trace.task.data.answer == "42" and trace.metrics["answer"] == 42.0


async def test_it_passes_verifiers_wire_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its environment server streams it to prime-rl: deltas, then a head that closes the run."""
    env = an_environment(monkeypatch, client_of(called_session()))
    received = EpisodeAssembly()
    (slot,) = env.slots(next(iter(env.taskset)))

    async def send(delta: dict[str, Any]) -> None:
        received.apply(delta)

    async with DeltaStreamer(lambda: slot.traces, send) as streamer:
        episode = await env.run_slot(slot, CONTEXT, on_trace=streamer.watch)
    (trace,) = episode.traces
    summary = TraceSummary(id=trace.id, nodes=len(trace.nodes), calls=len(trace.calls))
    (sent,) = received.finish(episode.model_dump(exclude={"traces"}), [summary])["traces"]
    assert sent["ok"] and sent["task"]["data"]["answer"] == "42"
    assert sent["nodes"][1]["logprobs"] == trace.nodes[1].logprobs
    assert [node["token_ids"] for node in sent["nodes"]] == [node.token_ids for node in trace.nodes]


async def test_a_trace_is_seen_before_its_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    client, seen = LongClient(), list[Any]()
    playing = asyncio.create_task(played(an_environment(monkeypatch, client), seen.append))
    async with asyncio.timeout(20):
        await client.under_way.wait()
    assert len(seen) == 1 and not seen[0].is_completed
    playing.cancel()
    with suppress(asyncio.CancelledError):
        await playing


async def test_a_lost_session_is_an_episode_that_is_not_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    episode = await played(an_environment(monkeypatch, CallsClient(a_group("t", None))))
    (trace,) = episode.traces
    assert not episode.ok and trace.last_error.type == "Gone" and not trace.nodes


async def test_a_failed_agent_without_trainable_tokens_is_ok(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    episode = await played(an_environment(monkeypatch, client_of(untaught_session())))
    (trace,) = episode.traces
    assert episode.ok and trace.ok and trace.reward == 0.0 and trace.rewards["polar"] is not None
    assert trace.num_turns == 4 and not any(any(branch.sampled_mask) for branch in trace.branches)


@pytest.mark.parametrize("owner", ["episode", "agent"])
async def test_a_server_that_is_away_fails_the_episode_after_its_retries(
    owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception instead would end the whole evaluation around it."""
    client, retries = AwayClient(), {"retries": {"max_retries": 1}}
    env = an_environment(monkeypatch, client, **(retries if owner == "episode" else {"agent": retries}))
    episode = await played(env)
    assert not episode.ok and client.asked == 2
    (trace,) = episode.traces
    assert trace.last_error.type == "ServerError" and "no server at" in trace.last_error.message


async def test_the_deadline_of_an_episode_cancels_its_session_at_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = LongClient()
    async with asyncio.timeout(20):
        episode = await played(an_environment(monkeypatch, client, timeout={"episode": 0.2}))
    assert not episode.ok and episode.is_timeout and client.cancelled == ["t"]


async def test_a_cancelled_request_cancels_its_session_at_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over verifiers' own environment server and client. The server starts without an account of Prime."""
    long = LongClient()
    monkeypatch.setattr(BridgeConfig, "client", lambda _: long)
    server = EnvServer(resolve_env_config({"taskset": {"id": "polar_hooked_words"}}), "tcp://127.0.0.1:0")
    serving = asyncio.create_task(server.run())
    client = EnvClient(server.address)
    row = next(iter(server.env.taskset)).data.model_dump()
    asking = asyncio.create_task(client.run(EvalClientConfig(), "m", SamplingConfig(), row))
    try:
        async with asyncio.timeout(20):
            await long.under_way.wait()
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            await long.was_cancelled.wait()
    finally:
        await client.close()
        serving.cancel()
        await serving
    assert long.cancelled == ["t"]


@pytest.mark.parametrize(("budget", "stop"), [("max_calls", "max_turns"), ("max_tokens", "max_output_tokens")])
async def test_a_session_that_a_budget_ended_is_truncated(
    budget: str, stop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = called_session()
    ended = FinishedSession(ended.result.model_copy(update={"ended_by": budget}), ended.trajectory)
    (trace,) = (await played(an_environment(monkeypatch, client_of(ended)))).traces
    assert trace.stop_condition == stop and trace.is_truncated


async def test_the_example_is_loaded_and_run_by_verifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PRIME)
    client = CallsClient(a_group("a", 1.0), a_group("b", 1.0))
    monkeypatch.setattr(BridgeConfig, "client", lambda _: client)
    env = load_environment(resolve_env_config({"taskset": {"id": "polar-words"}}))
    episodes = [await env.run_slot(slot, CONTEXT) for task in env.taskset for slot in env.slots(task)]
    assert [episode.ok for episode in episodes] == [True, True]
    assert [task.files for task in client.submitted] == [{}, {"x.txt": "kept\n"}]
    assert all(task.evaluator and task.evaluator.name == "test_on_output" for task in client.submitted)
