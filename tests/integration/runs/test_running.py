"""`polar.run` as a program uses it: a scripted model, a shell harness, real everything else."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import polar
from polar.errors import ConfigError
from polar.types import Stage
from scripted_project import write_project
from waiting import HANG_S, blocked_until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def a_task(folder: Path, task_id: str | None = "say", then: str = "", **fields: Any) -> polar.TaskRequest:
    command = f"{sys.executable} {folder}/agent.py > said.txt; {then or 'true'}"
    evaluator = {"name": "test_on_output", "options": {"command": "grep Hello said.txt"}}
    harness = {"name": "shell", "options": {"command": command}}
    values = {"task_id": task_id, "instruction": "Say hello.", "harness": harness, "evaluator": evaluator}
    return polar.TaskRequest.model_validate(values | fields)


def test_tasks_come_back_as_a_stored_run(project: Path) -> None:
    seen: list[str] = []
    tasks = [a_task(project, "b", num_samples=2), a_task(project, None)]
    run = polar.run(tasks, runs_dir="elsewhere", on_result=lambda result: seen.append(result.session_id))
    assert [session.session_id for session in run] == ["b-0", "b-1", "task-0002-0"]
    assert sorted(seen) == ["b-0", "b-1", "task-0002-0"]
    assert [result.reward for result in run.results] == [1.0] * 3
    assert all(result.trainable for result in run.results)
    assert run.paths.root.parent == Path("elsewhere") and run.record.finished is not None
    rows = list(run.rows())
    assert [(row["session_id"], row["group"], row["reward"]) for row in rows] == [
        ("b-0", "b", 1.0),
        ("b-1", "b", 1.0),
        ("task-0002-0", "task-0002", 1.0),
    ]
    for row, trace in zip(rows, run.traces, strict=True):
        (call,) = run[row["session_id"]].calls
        assert row["completion_ids"] == call.completion_ids.tolist() and sum(row["mask"]) == trace.trainable_tokens
        assert len(row["prompt_ids"]) == call.prompt_tokens


async def test_it_runs_where_a_loop_already_runs_and_on_that_loop(project: Path) -> None:
    """As in a notebook, and as in a program of asyncio."""
    for run in (polar.run([a_task(project)]), await polar.run_async([a_task(project).model_dump()], samples=2)):
        assert {result.reward for result in run.results} == {1.0}
    assert len(run) == 2


def test_what_goes_wrong_in_a_session_is_on_its_result(project: Path) -> None:
    run = polar.run([a_task(project, then="exit 3")])
    (result,) = run.results
    assert result.failure and (result.failure.type, result.failure.agent, result.reward) == (
        "HarnessExit",
        True,
        0.0,
    )


def test_an_error_of_the_callback_does_not_end_the_run(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(result: polar.SessionResult) -> None:
        raise ValueError(result.session_id)

    assert len(polar.run([a_task(project)], samples=2, on_result=broken).results) == 2
    assert sorted(record.message for record in caplog.records if record.name == "polar.runs") == [
        "on_result failed for session say-0",
        "on_result failed for session say-1",
    ]


@pytest.mark.parametrize(
    ("tasks", "config", "message"),
    [
        ([{"instruction": "x", "harness": "codexx"}], None, r"tasks: nothing was run:\n  task 1: .*codexx"),
        ([{"instruction": "x", "task_id": "a"}] * 2, None, r"task 2: task_id: 'a' is used at task 1 too"),
        ([{}], None, "task 1: instruction: missing"),
        ([], None, "there are no tasks"),
        ("absent.toml", None, "no such file"),
        ([{"instruction": "x"}], {"pools": {"init": 0}}, "config: pools.init"),
        ([{"instruction": "x"}], "absent.toml", "no config file"),
    ],
)
def test_wrong_input_is_refused_before_anything_runs(project: Path, tasks: Any, config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        polar.run(tasks, config=config)
    assert not (project / "polar-runs").exists()


INTERRUPTED = """
import polar
from polar.types import TaskRequest
try:
    polar.run([TaskRequest.model_validate_json({task!r})])
except KeyboardInterrupt:
    run = polar.load_run()
    print([(session.stage.value, len(session.calls), len(session.traces)) for session in run])
    raise
"""


def test_ctrl_c_keeps_what_was_captured_and_leaves_nothing_running(project: Path) -> None:
    started = project / "started"
    task = a_task(project, then=f"touch {started}; sleep 600").model_dump_json()
    path = os.pathsep.join([str(project), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", INTERRUPTED.format(task=task)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    try:
        blocked_until(started.exists)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert output == f"{[(Stage.CANCELLED.value, 1, 1)]}\n" and process.returncode == -signal.SIGINT
    assert list(project.glob("polar-runs/*/sessions/*/place")) == []


def test_the_python_page_runs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All but the part about a server, which tests/integration/client runs."""
    task = {"task_id": "greet", "instruction": "Greet.", "harness": "my_harness:AskOnce"}
    (project / "tasks.jsonl").write_text(json.dumps(task))
    page = (ROOT / "docs/python.md").read_text().partition("## With a rollout server")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block.replace("tasks.toml", "tasks.jsonl"), "docs/python.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert "greet-3 COMPLETED 1.0" in printed and "hello-0 1.0 True" in printed
    assert re.search(r"^2 sequences, \d+ tokens to train on$", printed, re.MULTILINE)


async def test_cancelling_the_asynchronous_form_ends_its_sessions(project: Path) -> None:
    started = project / "started"
    running = asyncio.create_task(polar.run_async([a_task(project, then=f"touch {started}; sleep 600")]))
    await asyncio.to_thread(blocked_until, started.exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [session.stage for session in polar.load_run()] == [Stage.CANCELLED]
