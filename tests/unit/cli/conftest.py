"""A finished run on disk, made with the real journal and a real builder, for the commands to look at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from polar.audit.certificate import certify
from polar.builders.labels import labelled
from polar.builders.prefix_merging import PrefixMerging
from polar.cli.app import app
from polar.config import Config, ModelConfig
from polar.store.journal import Journal
from polar.store.paths import RunPaths, RunRecord
from polar.store.seal import sealed
from polar.store.trajectories import write_trajectory
from polar.tokens.sequences import digest_of
from polar.types import (
    Call,
    CallTimes,
    Failure,
    Lease,
    Message,
    Score,
    Session,
    SessionResult,
    Spec,
    Stage,
    Strict,
    TaskRequest,
    Tool,
    Trajectory,
    TrajectoryStatistics,
    logprobs,
    token_ids,
)

RUN_ID = "20261115-051233-ab12"
START = 1_794_719_553.0
TASK = TaskRequest(task_id="add", instruction="add 2\nand 2", num_samples=2)
TIMES = [(Stage.QUEUED, 0.0), (Stage.INIT, 0.25), (Stage.READY, 1.0), (Stage.RUNNING, 1.5)]
TIMES += [(Stage.POSTRUN, 4.0), (Stage.COMPLETED, 4.5)]


class LetterRenderer:
    """Spells id 97 as `a`; shows that a renderer of the user's own will do."""

    class Options(Strict):
        upper: bool = False

    def __init__(self, options: Options) -> None:
        self._upper = options.upper
        self._loaded = False

    async def load(self) -> None:
        self._loaded = True

    def decode(self, ids: Sequence[int]) -> str:
        assert self._loaded, "load comes before everything else"
        text = "".join(map(chr, ids))
        return text.upper() if self._upper else text


def a_call(call_id: str, new_prompt: str, completion: str, parent: Call | None = None, **changes: Any) -> Call:
    """A call whose tokens are the letters of its text, each with logprob -0.5."""
    prompt = _whole_prompt(parent) + new_prompt if parent else new_prompt
    values: dict[str, Any] = {
        "call_id": f"add-0.1.{call_id}",
        "session_id": "add-0",
        "parent_id": parent.call_id if parent else None,
        "continues": parent is not None,
        "new_prompt_ids": token_ids(map(ord, new_prompt)),
        "completion_ids": token_ids(map(ord, completion)),
        "logprobs": logprobs([-0.5] * len(completion)),
        "prompt_digest": digest_of(token_ids(map(ord, prompt))),
        "prompt_tokens": len(prompt),
        "finish_reason": "stop",
        "new_messages": (Message(role="user", content=new_prompt),),
        "response": Message(role="assistant", content=completion),
        "tools": (Tool(name="bash"),),
        "new_items": (b"0" * 16,),
        "dialect": "openai_chat",
        "kind": "agent",
        "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
        "engine": "scripted",
        "logprob_mode": "raw",
        "times": CallTimes(START + 2, START + 2.125, START + 2.5),
        "evaluated_tokens": 5,
        "received": True,
    }
    return Call(**(values | changes))


def _whole_prompt(call: Call) -> str:
    """Enough for a chain of two."""
    return "".join(map(chr, [*call.new_prompt_ids, *call.completion_ids]))


def the_calls() -> list[Call]:
    first = a_call("1", "<hi>\n", "ab\x1b", logprobs=logprobs([-0.5, float("nan"), -0.5]))
    second = a_call("2", "<ok>", "de", parent=first, times=CallTimes(START + 3, START + 3, START + 3.25))
    lost = a_call("3", "<other>", "zz", received=False, break_reason="edited_history", lone_surrogates=2)
    return [first, second, lost]


async def _write_run(runs_dir: Path, run_id: str) -> RunPaths:
    run = RunPaths.create(runs_dir, run_id)
    renderer = Spec(name=f"{__name__}:LetterRenderer")
    config = Config(model=ModelConfig(renderer=renderer))
    run.write_record(
        RunRecord(
            run_id=run_id, config=config, versions={}, tasks=1, sessions=2, started=START, finished=START + 5
        )
    )
    async with await Journal.open(run.journal) as journal:
        for index in range(2):
            await journal.add_session(_lease(index))
        await _complete_first(journal, run)
        failure = Failure(where="init", type="RuntimeFailure", message="no space\nleft [red]\x1b[31m")
        await journal.save_result(_result("add-1", stage=Stage.FAILED, failure=failure, index=1))
    return run


def _lease(index: int) -> Lease:
    return Lease(session=Session(session_id=f"add-{index}", task_id="add", index=index), task=TASK)


async def _complete_first(journal: Journal, run: RunPaths) -> None:
    for stage, after in TIMES:
        await journal.record_stage("add-0", stage, START + after)
    for call in the_calls():
        await journal.append_call(call)
    trajectory: Trajectory = PrefixMerging(PrefixMerging.Options()).build("add-0", the_calls())
    statistics = TrajectoryStatistics.model_validate(trajectory.statistics)
    score = Score(reward=1.0, metrics={"passed": 2.0}, reasons=("both tests pass",))
    write_trajectory(run.session("add-0").traces, labelled(trajectory, _lease(0), score, None))
    proof = {"certificate": certify(the_calls(), trajectory), "traces": "sessions/add-0/traces.msgpack"}
    await journal.save_result(_result("add-0", score=score, statistics=statistics, **proof))


def _result(session_id: str, **fields: Any) -> SessionResult:
    values: dict[str, Any] = {"task_id": "add", "index": 0, "attempt": 1, "stage": Stage.COMPLETED}
    return sealed(SessionResult(session_id=session_id, **(values | fields)), TASK)


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def a_run(runs_dir: Path) -> Callable[[str], RunPaths]:
    return lambda run_id: asyncio.run(_write_run(runs_dir, run_id))


@pytest.fixture
def run(a_run: Callable[[str], RunPaths]) -> RunPaths:
    return a_run(RUN_ID)


@pytest.fixture
def polar(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Runs `polar` with the given arguments; no colours, wide enough for every table, clocks in UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", "220")
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield lambda *arguments: CliRunner().invoke(app, ["--runs-dir", str(runs_dir), *arguments])
    time.tzset()
