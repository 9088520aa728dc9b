"""`polar generate --server`: attempts run at a server until enough are confirmed, and the data is written here."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import polar
from fake_node import FakeNode, Service
from polar.cli.app import app
from polar.client import SyncPolarClient
from polar.types import Stage
from waiting import HANG_S, blocked_until

Rewards = Callable[[str], float]
MAIN = "from polar.cli.app import main; main()"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    names = {"add": "one/one", "mul": "two/two"}
    tasks = (
        {
            "task_id": name,
            "instruction": name,
            "harness": {"name": "shell", "options": {"command": "true"}},
            "metadata": {"repo": repository},
        }
        for name, repository in names.items()
    )
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(service: Service, *arguments: str) -> list[str]:
    return ["generate", "tasks.jsonl", "--out", "data", "--server", service.url, *arguments]


def generated(service: Service, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*command(service, *arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def serve(node: FakeNode, count: int, reward: Rewards) -> threading.Thread:
    def work() -> None:
        done = 0
        while done < count:
            for session_id in node.lease(wait_s=5):
                node.finish(session_id, reward=reward(session_id))
                done += 1

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def task_ids(service: Service) -> list[str]:
    with SyncPolarClient(service.url) as client:
        return sorted(task.task_id for task in client.tasks())


@pytest.mark.usefixtures("folder")
def test_each_task_runs_until_enough_are_confirmed_and_no_more(service: Service, node: FakeNode) -> None:
    """`mul` is confirmed in its second attempt."""
    serving = serve(node, 3, lambda name: 0.0 if name.startswith("mul.") and ".000-" in name else 1.0)
    card = generated(service, "--attempts", "3")
    serving.join()
    assert card["all"] == {"tasks": 2, "attempts": 3, "accepted": 2, "rate": 0.6667, "failed": 0}
    run_id = card["run_id"]
    assert task_ids(service) == [f"add.{run_id}.000", f"mul.{run_id}.000", f"mul.{run_id}.001"]
    (row,) = (
        json.loads(line) for path in Path("data/sft").rglob("*.jsonl") for line in path.read_text().splitlines()
    )
    assert row["task_id"] == "add", "the task's own id"
    run = polar.load_run(Path("data/runs") / run_id)
    assert len(run) == 3 and all(len(session.calls) == 2 for session in run)
    assert generated(service, "--attempts", "3")["all"] == card["all"]
    assert len(task_ids(service)) == 3, "nothing more to run"


def test_an_attempt_that_outlives_the_command_is_taken_by_the_next_one(
    folder: Path, service: Service, node: FakeNode
) -> None:
    process = subprocess.Popen([sys.executable, "-c", MAIN, *command(service)], cwd=folder)
    try:
        blocked_until(lambda: len(task_ids(service)) == 2)
    finally:
        process.kill()
        process.wait()
    serving = serve(node, 2, lambda _: 1.0)
    assert generated(service)["all"]["accepted"] == 2
    serving.join()
    assert len(task_ids(service)) == 2


def test_ctrl_c_writes_what_has_ended_and_leaves_the_rest_to_go_on(
    folder: Path, service: Service, node: FakeNode
) -> None:
    process = subprocess.Popen([sys.executable, "-c", MAIN, *command(service)], cwd=folder, stderr=subprocess.PIPE)
    try:
        taken: list[str] = []
        blocked_until(lambda: bool(taken.extend(node.lease(2, wait_s=0.2)) or len(taken) == 2))
        node.finish(taken[0])
        blocked_until(lambda: any(folder.glob("data/runs/*/sessions/*/traces.msgpack")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert process.returncode == 130, err.decode()
    card = json.loads((folder / "data/card.json").read_text())
    assert (card["all"]["accepted"], card["complete"]) == (1, False)
    with SyncPolarClient(service.url) as client:
        assert not client.session(taken[1]).stage.final
    node.finish(taken[1])
    assert generated(service)["all"]["accepted"] == 2
    assert len(task_ids(service)) == 2


@pytest.mark.usefixtures("folder")
def test_what_was_cancelled_at_the_server_is_submitted_again(service: Service, node: FakeNode) -> None:
    def work() -> None:
        taken: list[str] = []
        blocked_until(lambda: bool(taken.extend(node.lease(wait_s=0.2)) or taken))
        with SyncPolarClient(service.url) as client:
            client.cancel_session(taken[0])
        node.finish(taken[0], stage=Stage.CANCELLED, score=None)
        serve(node, 1, lambda _: 1.0).join()

    serving = threading.Thread(target=work)
    serving.start()
    card = generated(service, "--limit", "1", "--attempts", "1")
    serving.join()
    assert (card["all"]["attempts"], card["all"]["accepted"]) == (1, 1)
    assert [name.removeprefix(f"add.{card['run_id']}.") for name in task_ids(service)] == ["000", "000.2"]
    assert generated(service, "--limit", "1", "--attempts", "1")["all"] == card["all"]


def test_a_server_that_is_not_there_is_an_error_and_leaves_nothing(folder: Path, service: Service) -> None:
    service.stop()
    done = CliRunner().invoke(app, command(service))
    assert done.exit_code == 2 and "no rollout server answers" in done.stderr
    assert not (folder / "data").exists()


@pytest.mark.usefixtures("folder")
def test_a_changed_task_is_refused(folder: Path, service: Service, node: FakeNode) -> None:
    serving = serve(node, 2, lambda _: 1.0)
    generated(service)
    serving.join()
    tasks = folder / "tasks.jsonl"
    tasks.write_text(tasks.read_text().replace('"instruction": "add"', '"instruction": "subtract"'))
    done = CliRunner().invoke(app, command(service))
    assert done.exit_code == 2 and "give the changed task a new task_id" in done.stderr
