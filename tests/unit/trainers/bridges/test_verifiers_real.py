"""verifiers' own types, wire and environment on the sessions of the bridge. Collected where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stored_calls import LAST, PROMPT, REPLY, RESULT, called_session, session_calls
from stored_groups import StoredClient, a_group
from verifiers.v1.episode import Episode
from verifiers.v1.serve.delta import DeltaStreamer, EpisodeAssembly, TraceSummary
from verifiers.v1.task import Task, TaskData
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from polar.credit.group import Group
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.prime_rl import run_episode

pytestmark = [pytest.mark.check, pytest.mark.filterwarnings("ignore")]

CONFIG = BridgeConfig(task={"harness": "pi"})
PACKAGE = """
import verifiers.v1 as vf
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.prime_rl import environment

class Words(vf.Taskset[vf.Task]):
    def load(self):
        yield vf.Task(vf.TaskData(prompt="Say hello."), self.config.task)

PolarWords = environment(BridgeConfig(task={"harness": "pi"}))
__all__ = ["Words", "PolarWords"]
"""


class RowData(TaskData):
    polar: dict[str, Any] = {}


class CallsClient(StoredClient):
    calls = tuple(session_calls())


def a_task() -> Any:
    return Task(RowData(prompt="Do it.", polar={"files": {"a.txt": "b"}}))


async def test_an_episode_has_one_trace_whose_branches_are_the_training_samples() -> None:
    client = CallsClient(Group("t", (called_session(0.5),)))
    episode = await run_episode(a_task(), CONFIG, lambda: client)
    assert isinstance(episode, Episode) and episode.ok
    (trace,) = episode.traces
    assert trace.reward == 0.5 and trace.ok and trace.is_completed
    found = {tuple(branch.token_ids): branch for branch in trace.branches}
    main = found[(*PROMPT, *REPLY, *RESULT, *LAST)]
    assert main.sampled_mask == [False] * 3 + [True] * 2 + [False] * 2 + [True] * 3
    spread = main.logprobs
    assert [value != 0.0 for value in spread] == main.sampled_mask
    assert spread[3] == session_calls()[0].logprobs[0], "not rounded"
    assert not any(found[(9, 16, 17)].sampled_mask)
    assert client.submitted[0].files == {"a.txt": "b"} and client.submitted[0].instruction == "Do it."


async def test_it_passes_verifiers_wire_unchanged() -> None:
    """As its environment server streams it to prime-rl: deltas, then a head that closes the run."""
    client = CallsClient(Group("t", (called_session(),)))
    received = EpisodeAssembly()
    traces: list[Any] = []

    async def send(delta: dict[str, Any]) -> None:
        received.apply(delta)

    async with DeltaStreamer(lambda: traces, send) as streamer:

        def minted(trace: Any) -> None:
            traces.append(trace)
            streamer.watch(trace)

        episode = await run_episode(a_task(), CONFIG, lambda: client, minted)
    (trace,) = traces
    summary = TraceSummary(id=trace.id, nodes=len(trace.nodes), calls=len(trace.calls))
    record = received.finish(episode.model_dump(exclude={"traces"}), [summary])
    (sent,) = record["traces"]
    assert sent["nodes"][1]["logprobs"] == trace.nodes[1].logprobs
    assert [node["token_ids"] for node in sent["nodes"]] == [node.token_ids for node in trace.nodes]


async def test_a_lost_session_is_an_episode_that_is_not_ok() -> None:
    episode = await run_episode(a_task(), CONFIG, lambda: CallsClient(a_group("t", None)))
    assert not episode.ok and episode.last_error.type == "Gone" and not episode.traces[0].nodes


async def test_an_environment_package_is_loaded_and_run_by_verifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package as prime-rl loads it: one taskset and one environment, exported by `__all__`."""
    (tmp_path / "polar_words.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    client = CallsClient(Group("t", (called_session(0.5),)))
    monkeypatch.setattr(BridgeConfig, "client", lambda _: client)
    env = load_environment(resolve_env_config({"taskset": {"id": "polar_words"}}))
    (slot,) = env.slots(next(iter(env.taskset)))
    episode = await env.run_slot(slot, None)
    assert episode.ok and episode.traces[0].reward == 0.5
    assert client.submitted[0].instruction == "Say hello." and client.submitted[0].harness.name == "pi"
