"""Data sets of sessions that a real node ran: a tool call, its result, a last word."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from atif import Trajectory
from typer.testing import CliRunner
from workshop import WRITE, Workshop, agent_task

from polar.cli.app import app
from polar.config import Config
from polar.data.export.jsonl import read_traces
from polar.runs.stored import StoredRun, read_run_async
from polar.store.paths import RunRecord
from polar.types import TokenIds


def script(turn: int, prompt_ids: TokenIds) -> str:
    """The agent writes the file and is done; when it is told to idle, it is done at once."""
    del prompt_ids
    return [f"I write it. {WRITE}", "Done."][turn]


def idle(turn: int, prompt_ids: TokenIds) -> str:
    del turn, prompt_ids
    return "I would rather not."


@pytest.fixture
async def run(workshop: Workshop) -> StoredRun:
    """A group of two tasks: the sessions of one solve it, the one of the other does not."""
    now = time.time()
    record = RunRecord(run_id=workshop.paths.run_id, config=Config(), versions={}, started=now, finished=now)
    workshop.paths.write_record(record)
    await workshop.run(script, [agent_task(task_id="t", group_id="g", num_samples=2)])
    await workshop.run(idle, [agent_task(task_id="idle", group_id="g")])
    return await read_run_async(workshop.paths)


def export(run: StoredRun, target: Path, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["export", str(run.paths.root), "--out", str(target), "--json", *arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def rows(target: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (target / "data/train-00000-of-00001.jsonl").read_text().splitlines()]


async def test_all_formats_hold_what_was_sampled(run: StoredRun, tmp_path: Path) -> None:
    assert [(r.session_id, r.reward, r.trainable) for r in run.results] == [
        ("t-0", 1.0, True),
        ("t-1", 1.0, True),
        ("idle-0", 0.0, True),
    ]
    traces = run.traces

    assert export(run, tmp_path / "jsonl", "--to", "jsonl")["rows"] == 3
    assert list(read_traces(tmp_path / "jsonl")) == traces

    export(run, tmp_path / "parquet", "--to", "parquet")
    stored = pyarrow.parquet.read_table(tmp_path / "parquet/data").to_pylist()
    for trace, row in zip(traces, stored, strict=True):
        assert row["prompt_ids"] == trace.prompt_ids.tolist() and row["mask"] == trace.loss_mask.tolist()
        assert row["completion_ids"] == trace.response_ids.tolist() and row["logprobs"] == trace.logprobs.tolist()
    assert [round(row["advantage"], 4) for row in stored] == [0.7071, 0.7071, -1.4142]
    assert {row["group_id"] for row in stored} == {"g"}

    export(run, tmp_path / "tokens", "--to", "tokens")
    for trace, row in zip(traces[:2], rows(tmp_path / "tokens"), strict=True):
        sampled = [i for i, bit in zip(trace.response_ids, trace.loss_mask, strict=True) if bit]
        assert [label for label in row["labels"] if label != -100] == sampled


async def test_the_conversation_is_the_one_that_took_place(run: StoredRun, tmp_path: Path) -> None:
    assert export(run, tmp_path / "sft", "--to", "sft", "--object-arguments")["rows"] == 2
    for row in rows(tmp_path / "sft"):
        said = [(message["role"], message["content"].strip()) for message in row["messages"]]
        assert said[-4:] == [
            ("user", "Write hello."),
            ("assistant", "I write it."),
            ("tool", ""),
            ("assistant", "Done."),
        ]
        call = row["messages"][-3]["tool_calls"][0]
        assert call["function"] == {"name": "bash", "arguments": {"command": "echo hello > answer.txt"}}
        assert row["messages"][-2]["tool_call_id"] == call["id"]
        assert [tool["function"]["name"] for tool in row["tools"]] == ["bash"]


async def test_each_atif_step_has_its_calls_tokens(run: StoredRun, tmp_path: Path) -> None:
    export(run, tmp_path / "atif", "--to", "atif")
    document = Trajectory.model_validate_json((tmp_path / "atif/data/t-0.json").read_text())
    metrics: list[Any] = [step.metrics for step in document.steps if step.metrics]
    calls = run["t-0"].calls
    assert [m.completion_token_ids for m in metrics] == [call.completion_ids.tolist() for call in calls]
    assert [m.logprobs for m in metrics] == [call.logprobs.tolist() for call in calls]
    assert [len(m.prompt_token_ids) for m in metrics] == [call.prompt_tokens for call in calls]
    assert document.agent.version.startswith("shell")


async def test_the_better_session_of_a_group_is_preferred(run: StoredRun, tmp_path: Path) -> None:
    report = export(run, tmp_path / "pairs", "--to", "sft", "--pairs")
    (row,) = rows(tmp_path / "pairs")
    assert report["rows"] == 1
    assert (row["chosen_session_id"], row["rejected_session_id"]) == ("t-0", "idle-0")
    assert row["rejected"][0]["content"].strip() == "I would rather not."
    assert row["prompt"][-1] == {"role": "user", "content": "Write hello."}
