"""`polar generate` as a user runs it: a scripted model, a shell harness, real everything else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polar
from polar.types import Stage
from scripted_project import write_project
from waiting import HANG_S, blocked_until

MAIN = "from polar.cli.app import main; main()"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path)
    return tmp_path


def a_task(folder: Path, task_id: str, check: str = "grep -q Hello said.txt", **fields: Any) -> dict[str, Any]:
    """`check` decides if a session is confirmed."""
    command = f"echo . >> {folder}/ran-{task_id}; {sys.executable} {folder}/agent.py > said.txt"
    return {
        "task_id": task_id,
        "instruction": f"Say hello to {task_id}.",
        "harness": {"name": "shell", "options": {"command": command}},
        "evaluator": {"name": "test_on_output", "options": {"command": check}},
    } | fields


def write_tasks(folder: Path, *tasks: dict[str, Any]) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, tasks)))
    return path


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", MAIN, "generate", "tasks.jsonl", "--out", "set", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def generated(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The card."""
    with started(folder, *arguments) as process:
        output, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == code, output + errors
    return json.loads((folder / "set/card.json").read_text())


def rows(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    for path in sorted((folder / "set" / name).glob("data/*.jsonl")):
        yield from map(json.loads, path.read_text().splitlines())


def runs_of(folder: Path, task_id: str) -> int:
    path = folder / f"ran-{task_id}"
    return path.read_text().count(".") if path.exists() else 0


def test_each_task_runs_until_enough_sessions_are_confirmed(project: Path) -> None:
    """`third` is confirmed in its third session, `never` in none."""
    third = f"test $(wc -l < {project}/ran-third) -ge 3"
    write_tasks(
        project,
        a_task(project, "once", metadata={"repo": "a/a"}),
        a_task(project, "third", third, metadata={"repo": "a/a"}),
        a_task(project, "never", "false", metadata={"repo": "b/b"}),
    )
    card = generated(project, "--attempts", "4")
    assert [runs_of(project, name) for name in ("once", "third", "never")] == [1, 3, 4]
    assert card["all"] == {"tasks": 3, "attempts": 8, "accepted": 2, "rate": 0.25, "failed": 0}
    assert [(each["repository"], each["split"], each["tally"]["rate"]) for each in card["repositories"]] == [
        ("a/a", "train", 0.5),
        ("b/b", "", 0.0),
    ]
    assert card["complete"] and card["tasks_solved"] == 2
    assert [row["session_id"] for row in rows(project, "sft/train")] == ["once-000", "third-002"]
    assert card["splits"]["test"]["rows"] == {"sft": 0, "tokens": 0}
    page = (project / "set/README.md").read_text()
    assert "| a/a | 2 | 4 | 2 | 50.0% | train |" in page and 'path: "sft/train/data/*"' in page


def test_exactly_the_sampled_tokens_have_labels(project: Path) -> None:
    write_tasks(project, a_task(project, "one"), a_task(project, "two"))
    generated(project, "--split", "50/50")
    run = polar.load_run(next((project / "set/runs").iterdir()))
    every = [*rows(project, "tokens/train"), *rows(project, "tokens/test")]
    assert Counter(row["task_id"] for row in every) == {"one": 1, "two": 1}
    for row in every:
        (call,) = run[row["session_id"]].calls
        labelled = [label for label in row["labels"] if label != -100]
        assert labelled == call.completion_ids.tolist()
        assert row["input_ids"][-len(labelled) :] == labelled
        assert len(row["input_ids"]) == call.prompt_tokens + len(labelled)


def test_equal_sessions_go_out_once(project: Path) -> None:
    write_tasks(project, a_task(project, "same"))
    card = generated(project, "--wanted", "3", "--attempts", "3")
    assert (card["all"]["accepted"], card["repeated"]) == (3, {"same_tokens": 2})
    assert card["splits"]["train"]["rows"] == {"sft": 1, "tokens": 1}
    assert (card["splits"]["train"]["sessions"], card["splits"]["train"]["share"]) == (1, 1.0)


@pytest.mark.check
def test_sessions_that_ended_never_run_again(project: Path) -> None:
    write_tasks(project, a_task(project, "good"), a_task(project, "never", "false"))
    first = generated(project, "--attempts", "2")
    (project / "set/sft/.train.killed/data").mkdir(parents=True)
    again = generated(project, "--attempts", "2")
    assert sorted(path.name for path in (project / "set/sft").iterdir()) == ["test", "train"]
    assert again["all"] == first["all"] and [runs_of(project, name) for name in ("good", "never")] == [1, 2]
    more = generated(project, "--attempts", "3")
    assert more["all"]["attempts"] == 4 and [runs_of(project, name) for name in ("good", "never")] == [1, 3]


@pytest.mark.check
def test_tasks_are_chosen_as_for_a_run(project: Path) -> None:
    write_tasks(project, *(a_task(project, name, metadata={"repo": f"o/{name}"}) for name in "abc"))
    card = generated(project, "--filter", "metadata.repo=o/[ab]", "--limit", "1")
    assert [each["repository"] for each in card["repositories"]] == ["o/a"]
    assert [runs_of(project, name) for name in "abc"] == [1, 0, 0]


@pytest.mark.check
def test_infrastructure_failures_are_no_attempts_and_are_bounded(project: Path) -> None:
    broken = a_task(project, "broken", prepare=["false"])
    write_tasks(project, broken, a_task(project, "good"))
    card = generated(project, "--max-failures", "2")
    assert card["all"] == {"tasks": 2, "attempts": 1, "accepted": 1, "rate": 1.0, "failed": 2}


@pytest.mark.check
def test_ctrl_c_leaves_a_folder_that_can_be_used_and_continued(project: Path) -> None:
    interrupted_run(project, signal.SIGINT, code=130)
    card = json.loads((project / "set/card.json").read_text())
    assert not card["complete"] and card["splits"]["train"]["rows"] == {"sft": 1, "tokens": 1}
    continued(project, Stage.CANCELLED)


@pytest.mark.check
def test_a_killed_generation_loses_only_the_sessions_under_way(project: Path) -> None:
    interrupted_run(project, signal.SIGKILL, code=-9)
    continued(project, Stage.RUNNING)


def interrupted_run(project: Path, how: signal.Signals, code: int) -> None:
    """Ends the command when `good` is confirmed and `slow` is under way, which sleeps until a file is there."""
    wait = f"while ! test -e {project}/go; do sleep 0.1; done"
    slow = a_task(project, "slow")
    slow["harness"]["options"]["command"] += f"; touch {project}/slow-runs; {wait}"
    write_tasks(project, a_task(project, "good"), slow)
    with started(project) as process:
        try:
            blocked_until(lambda: (project / "slow-runs").exists() and _ended(project, "good-000"))
            process.send_signal(how)
            process.communicate(timeout=HANG_S)
        finally:
            process.kill()
    assert process.returncode == code
    (project / "go").touch()


def _ended(project: Path, session_id: str) -> bool:
    run = polar.load_run(next((project / "set/runs").iterdir()))
    return run[session_id].result is not None


def continued(project: Path, stage: Stage) -> None:
    run = polar.load_run(next((project / "set/runs").iterdir()))
    assert run["slow-000"].stage is stage
    card = generated(project)
    assert [runs_of(project, name) for name in ("good", "slow")] == [1, 2]
    assert card["complete"] and card["all"]["attempts"] == card["all"]["accepted"] == 2
    run = polar.load_run(run.paths.root)
    result = run["slow-000"].result
    assert result is not None and [each.why for each in result.attempts] == ["polar generate was interrupted"]
    assert list(run.paths.sessions.glob("*/place")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "9010"], "write it as 90/10"),
        (["--wanted", "5", "--attempts", "4"], "--attempts is 4"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(project: Path, arguments: list[str], message: str) -> None:
    write_tasks(project, a_task(project, "good"))
    with started(project, *arguments) as process:
        _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 2 and message in errors and not (project / "set").exists()


def test_a_folder_of_something_else_is_left_alone(project: Path) -> None:
    write_tasks(project, a_task(project, "good"))
    (project / "set").mkdir()
    (project / "set/mine.txt").touch()
    with started(project) as process:
        _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 2 and "choose another --out" in errors
    assert [path.name for path in (project / "set").iterdir()] == ["mine.txt"]


@pytest.mark.check
def test_a_task_that_changed_is_not_mixed_with_its_old_sessions(project: Path) -> None:
    write_tasks(project, a_task(project, "good"))
    generated(project)
    write_tasks(project, a_task(project, "good", instruction="Say something else."))
    with started(project) as process:
        _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 2 and "give the changed task a new task_id" in errors


@pytest.mark.check
@pytest.mark.filterwarnings("ignore")  # of datasets and what it imports
def test_the_folder_loads_in_datasets_and_pandas_and_audits_clean(project: Path) -> None:
    tasks = [a_task(project, name, metadata={"repo": f"o/{name}"}) for name in ("a", "b", "c")]
    write_tasks(project, *tasks)
    generated(project, "--split", "60/40")
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    for name, columns in (("sft", {"messages", "tools"}), ("tokens", {"input_ids", "labels"})):
        loaded = datasets.load_dataset(str(project / "set"), name, cache_dir=str(project / "cache"))
        assert {split: len(each) for split, each in loaded.items()} == {"train": 2, "test": 1}
        assert columns <= set(loaded["train"].column_names)
        frame = pandas.read_json(next((project / "set" / name / "test/data").iterdir()), lines=True)
        assert list(frame["task_id"]) == loaded["test"]["task_id"][:]
    audit = subprocess.run(
        [sys.executable, "-c", MAIN, "--runs-dir", "set/runs", "audit"],
        cwd=project,
        capture_output=True,
        text=True,
    )
    assert audit.returncode == 0, audit.stdout + audit.stderr
