"""Sessions with an endpoint: run, judged, stored, and never to be trained on; the key stays in the environment."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from workshop import agent_task, shell_task

import polar
from fake_endpoint import KEY, KEY_VARIABLE, Answer, FakeEndpoint, fake_endpoint
from polar.cli.app import app
from polar.credit.advantages import FinishedSession
from polar.credit.group import Group
from polar.types import Message, Trajectory

WRITE = '{"command": "echo hello > answer.txt"}'


def answer(_: int, body: dict[str, Any]) -> Answer:
    """Writes the file, then says so."""
    if len(body["messages"]) > 1:
        return Answer("Done.")
    return Answer("I write.", reasoning="A file.", calls=(("bash", WRITE),))


@pytest.fixture
async def endpoint(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[FakeEndpoint]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    async with fake_endpoint(answer) as fake:
        yield fake


def config(endpoint: FakeEndpoint, api: str = "openai") -> dict[str, Any]:
    node = {"outage_s": 0, "max_failures": 1}
    return {"engine": {"name": "endpoint", "options": endpoint.options(api)}, "node": node}


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_session_is_judged_and_stored_and_not_trained_on(
    endpoint: FakeEndpoint, tmp_path: Path, api: str
) -> None:
    run = await polar.run_async([agent_task()], config=config(endpoint, api), runs_dir=tmp_path)
    (session,) = run
    result = session.result
    assert result is not None and result.failure is None and result.reward == 1.0
    assert (result.trainable, result.untrainable_reason) == (False, "no_token_ids")
    assert session.traces == () and list(run.rows()) == [] and list(run.rows(trainable=False)) == []
    statistics = result.statistics
    assert (statistics.calls, statistics.sampled_tokens, statistics.reported_tokens) == (2, 0, 14)
    assert result.certificate is not None and result.certificate.findings == 0
    first, second = polar.load_run(run.paths.root)[session.session_id].calls
    assert first.response.tool_calls[0].arguments == WRITE and first.response.reasoning == "A file."
    assert [message.role for message in second.new_messages] == ["assistant", "tool"]
    assert second.response == Message(role="assistant", content="Done.")
    assert run.record.versions["model"].startswith("frontier-1 at http://")
    assert run.record.versions["renderer"] == "engine"


async def test_its_conversation_is_exported_on_request(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    """As an example for a smaller model. Without the request it is left out, as from everything that trains."""
    run = await polar.run_async([agent_task(task_id="t")], config=config(endpoint), runs_dir=tmp_path / "runs")

    def export(name: str, *options: str) -> dict[str, Any]:
        command = ["export", str(run.paths.root), "--to", "sft", "--json", "--out", str(tmp_path / name), *options]
        return json.loads(CliRunner().invoke(app, command).stdout)

    assert export("none")["left_out"]["sessions"] == {"no_token_ids": 1}
    assert export("better", "--untrainable", "--min-reward", "2")["left_out"]["sessions"] == {
        "below_min_reward": 1
    }
    assert export("one", "--untrainable", "--min-reward", "1")["rows"] == 1
    row = json.loads((tmp_path / "one/data/train-00000-of-00001.jsonl").read_text())
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    asked = row["messages"][1]
    assert (asked["reasoning_content"], asked["tool_calls"][0]["function"]["arguments"]) == ("A file.", WRITE)
    assert [message["weight"] for message in row["messages"] if message["role"] == "assistant"] == [1, 1]
    assert (row["session_id"], row["kind"], row["reward"]) == ("t-0", "agent", 1.0)


async def test_its_reward_is_in_no_baseline(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    run = await polar.run_async([agent_task(num_samples=2)], config=config(endpoint), runs_dir=tmp_path)
    finished = [FinishedSession(result, Trajectory(result.session_id, "b")) for result in run.results]
    group = Group("g", tuple(finished))
    assert [result.reward for result in run.results] == [1.0, 1.0]
    assert group.rewards == [] and group.credited() == [] and group.rows() == []


async def test_the_key_is_in_no_file_and_not_in_the_session_s_environment(
    endpoint: FakeEndpoint, tmp_path: Path
) -> None:
    task = shell_task("env > answer.txt; ls", keep={"artifacts": ["answer.txt"]}, task_id="env")
    run = await polar.run_async([agent_task(), task], config=config(endpoint), runs_dir=tmp_path)
    kept = [path for path in run.paths.root.rglob("*") if path.is_file()]
    assert any(path.name == "answer.txt" for path in kept) and any(path.name == "journal.db" for path in kept)
    assert [path.name for path in kept if KEY.encode() in path.read_bytes()] == []


async def test_an_endpoint_that_fails_is_infrastructure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    async with fake_endpoint(lambda *_: Answer(status=500, error={"message": f"lost {KEY}"})) as fake:
        run = await polar.run_async([agent_task()], config=config(fake), runs_dir=tmp_path)
    (result,) = run.results
    assert (result.reward, result.untrainable_reason) == (None, "infrastructure")
    assert result.failure is not None and "lost [key]" in result.failure.message
