"""Sessions that a judge scores, alone and together with tests, in a whole node."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from workshop import CHECK, WRITE, Workshop, agent_task

from fake_judge import JudgeRequest, fake_judge
from polar.engines.embedded.process import EmbeddedProcess, ServerSettings
from polar.evaluators.base import Evidence
from polar.runs.rescore import RescorePlan, rescore
from polar.runs.stored import read_run_async
from polar.store.weights import WeightsError, default_weights

SCRIPT = [f"I write it. {WRITE}", "Done."]
THREADS: list[str] = []


def in_a_thread(evidence: Evidence) -> float:
    """An evaluator of the user's that is no coroutine, and reads the session's workspace."""
    try:
        asyncio.get_running_loop()
        raise RuntimeError("the node's event loop must not wait for this")
    except RuntimeError as error:
        if "no running" not in str(error):
            raise
    THREADS.append(threading.current_thread().name)
    return float(asyncio.run(evidence.runtime.get("answer.txt")) == b"hello\n")


async def as_a_coroutine(evidence: Evidence) -> float:
    return float(await evidence.runtime.get("answer.txt") == b"hello\n")


def judge(url: str, **options: Any) -> dict[str, Any]:
    given = {"base_url": url, "model": "judge-1", "rubric": "Did it write hello?", "retries": 0, **options}
    return {"name": "judge", "options": given}


def combine(*parts: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"name": "combine", "options": {"parts": list(parts), **options}}


def log_of(workshop: Workshop, *folders: str) -> list[dict[str, Any]]:
    path = workshop.paths.session(workshop.only.session_id).evaluator_logs.joinpath(*folders, "judge.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_tests_gate_the_judge_and_the_judge_scores_each_call(workshop: Workshop) -> None:
    def answer(asked: JudgeRequest) -> str:
        calls = [{"call": n, "reason": "r", "scores": {"score": 5 * n}} for n in (1, 2)]
        return json.dumps({"id": asked.mark, "calls": calls})

    async with fake_judge(answer) as fake:
        parts = (
            {**CHECK, "label": "tests", "weight": 0.5, "gate": 1.0},
            {**judge(fake.url, per="call"), "label": "steps", "weight": 0.5},
        )
        await workshop.run(SCRIPT, [agent_task(task_id="a", evaluator=combine(*parts))])
    result = workshop.only
    assert result.failure is None and result.reward == 0.875 and result.score is not None
    assert {name: part.reward for name, part in result.score.parts.items()} == {"tests": 1.0, "steps": 0.75}
    assert list((result.score.call_rewards or {}).values()) == [0.75, 1.0]
    assert result.statistics.calls == 2, "the judge's own call is none of the session's"
    (line,) = log_of(workshop, "steps")
    assert "I write it." in line["messages"][1]["content"]


async def test_a_judge_that_the_node_does_not_allow_is_no_verdict(workshop: Workshop) -> None:
    async with fake_judge(lambda asked: asked.verdict()) as fake:
        workshop.permits = {"endpoints": ["https://judge.example/v1"]}
        await workshop.run(SCRIPT, [agent_task(task_id="a", evaluator=judge(fake.url))])
        assert fake.requests == []
    failure = workshop.only.failure
    assert failure is not None and failure.infrastructure and workshop.only.reward is None
    assert (failure.where, failure.type) == ("evaluator", "EndpointNotAllowed")
    assert "permits.endpoints" in failure.message and "https://judge.example/v1" in failure.message


async def test_a_verdict_that_is_missing_can_be_asked_for_later(workshop: Workshop) -> None:
    async with fake_judge(lambda asked: asked.verdict() if asked.number > 1 else "I like it.") as fake:
        await workshop.run(SCRIPT, [agent_task(task_id="a", evaluator=judge(fake.url))])
        result = workshop.only
        assert result.failure is not None and result.failure.infrastructure and result.reward is None
        run = await read_run_async(workshop.paths)
        (again,) = await rescore(run, list(run), RescorePlan())
    assert again.before is None and again.after == 1.0


async def test_parts_of_the_users_run_beside_ours_in_a_thread(workshop: Workshop) -> None:
    THREADS.clear()
    here = [{"name": f"{__name__}:{function.__name__}"} for function in (in_a_thread, as_a_coroutine)]
    async with fake_judge(lambda asked: asked.verdict(score=5)) as fake:
        parts = (CHECK, judge(fake.url), *here)
        await workshop.run(SCRIPT, [agent_task(task_id="a", evaluator=combine(*parts))])
    result = workshop.only
    assert result.failure is None and result.score is not None
    assert [part.reward for part in result.score.parts.values()] == [1.0, 0.5, 1.0, 1.0]
    assert result.reward == 3.5 and THREADS and THREADS != [threading.main_thread().name]


@asynccontextmanager
async def llama_server(gguf: Path) -> AsyncGenerator[tuple[str, str]]:
    process, key = await EmbeddedProcess.spawn(), secrets.token_urlsafe(8)
    settings = ServerSettings(str(gguf), parallel=1, context_tokens=2048, threads=2, api_key=key)
    try:
        yield await process.ready(settings), key
    finally:
        await process.stop()


@pytest.mark.check
async def test_a_real_model_gives_a_verdict_within_the_schema(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """135M parameters judge badly. What is checked: a real server takes the request and its verdict is read."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is missing: pip install 'polar-rollout[embedded]'")
    try:
        gguf = await default_weights()
    except WeightsError as error:
        pytest.skip(str(error))
    async with llama_server(gguf) as (address, key):
        monkeypatch.setenv("JUDGE_KEY", key)
        workshop.permits = {"endpoints": [{"url": address, "api_key_env": "JUDGE_KEY"}]}
        small = {"scale": {"low": 1, "high": 5, "whole": True}, "reason_chars": 80, "max_tokens": 300}
        spec = judge(f"{address}/v1", api_key_env="JUDGE_KEY", **small)
        await workshop.run(SCRIPT, [agent_task(task_id="a", evaluator=spec)])
    result = workshop.only
    assert result.failure is None and result.reward is not None and 0.0 <= result.reward <= 1.0
    assert result.score is not None and result.score.metrics["judge_prompt_tokens"] > 100
    lines = log_of(workshop)
    assert json.loads(lines[-1]["text"])["scores"] and key not in json.dumps(lines)
