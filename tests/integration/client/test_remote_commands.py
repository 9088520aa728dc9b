"""`polar submit`, `cancel`, `ls` and `show` at a real rollout server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fake_node import FakeNode, Service
from polar.cli.app import app
from polar.client import SyncPolarClient
from polar.types import Failure, Stage, Strict
from waiting import HANG_S

Polar = Callable[..., Result]

TASKS = """
[defaults]
harness = { name = "shell", options = { command = "true" } }

[[tasks]]
task_id = "add"
instruction = "add 2\\nand 2"
num_samples = 2
group_id = "sums"

[[tasks]]
instruction = "no id"
"""


class LetterRenderer:
    """Spells id 97 as `a`."""

    class Options(Strict):
        pass

    def __init__(self, options: Options) -> None:
        del options

    async def load(self) -> None: ...

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tasks.toml").write_text(TASKS)
    (tmp_path / "polar.toml").write_text(f'[model]\nrenderer = "{__name__}:LetterRenderer"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "220")
    return tmp_path


@pytest.fixture
def polar(folder: Path, service: Service) -> Polar:
    """Runs `polar` against the server; `--server` stands last."""
    return lambda *arguments: CliRunner().invoke(app, [*arguments, "--server", service.url])


def lines_of(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [re.sub(r" {2,}", " | ", line.strip()) for line in result.stdout.splitlines()]


def test_tasks_are_handed_in_and_named(polar: Polar, service: Service) -> None:
    lines = lines_of(polar("submit", "tasks.toml"))
    assert lines[0] == "task add: 2 sessions"
    assert re.fullmatch(r"task task-[0-9a-f]{16}: 1 session", lines[1])
    assert lines[-1] == f"`polar ls --server {service.url}` shows their progress"


def test_tasks_that_no_node_would_run_are_handed_in_with_a_warning(polar: Polar, service: Service) -> None:
    warned = polar("submit", "tasks.toml")
    assert warned.exit_code == 0
    assert f"no live node to run sessions: start one with `polar gateway --server {service.url}`" in (
        warned.stderr
    )
    FakeNode(service.url)
    assert polar("submit", "tasks.toml").stderr == ""


def test_what_was_handed_in_as_json(polar: Polar, service: Service) -> None:
    told = json.loads(polar("submit", "tasks.toml", "--json").stdout)
    assert told["server"] == service.url
    assert [task["num_samples"] for task in told["tasks"]] == [2, 1]
    assert told["tasks"][0]["session_ids"] == ["add-0", "add-1"]


def test_samples_replace_those_of_the_file(polar: Polar) -> None:
    told = json.loads(polar("submit", "tasks.toml", "--samples", "5", "--json").stdout)
    assert [task["num_samples"] for task in told["tasks"]] == [5, 5]


def test_waiting_without_a_node_is_refused_and_nothing_is_sent(polar: Polar, service: Service) -> None:
    refused = polar("submit", "tasks.toml", "--wait")
    assert refused.exit_code == 2
    assert f"no live node to run sessions: start one with `polar gateway --server {service.url}`" in (
        refused.stderr.replace("\n", " ")
    )
    assert json.loads(polar("ls", "--json").stdout)["tasks"] == []


def test_a_file_submitted_twice_runs_once_unless_fresh(polar: Polar, folder: Path) -> None:
    (folder / "named.jsonl").write_text('{"task_id": "one", "instruction": "x", "num_samples": 2}\n')
    polar("submit", "named.jsonl")
    again = polar("submit", "named.jsonl")
    assert again.exit_code == 0 and "task one: already there, 0 of 2 sessions finished" in again.stdout
    assert json.loads(polar("submit", "named.jsonl", "--json").stdout)["already_there"] == ["one"]
    assert len(json.loads(polar("submit", "named.jsonl", "--fresh", "--json").stdout)["tasks"]) == 1
    (folder / "unnamed.jsonl").write_text('{"instruction": "one"}\n{"instruction": "two"}\n')
    assert polar("submit", "unnamed.jsonl").exit_code == polar("submit", "unnamed.jsonl").exit_code == 0


def test_another_content_under_the_same_id_is_refused(polar: Polar, folder: Path) -> None:
    polar("submit", "tasks.toml")
    (folder / "other.jsonl").write_text('{"task_id": "add", "instruction": "something else"}\n')
    refused = polar("submit", "other.jsonl")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "a task 'add' already exists" in refused.stderr and "--fresh" in refused.stderr


def test_a_refusal_tells_what_went_before_it(polar: Polar, folder: Path) -> None:
    polar("submit", "tasks.toml")
    (folder / "more.jsonl").write_text(
        '{"task_id": "first", "instruction": "x"}\n{"task_id": "add", "instruction": "x"}\n'
    )
    refused = polar("submit", "more.jsonl")
    assert refused.exit_code == 2 and refused.stderr.rstrip().endswith("submitted before it: first")


def test_a_bad_file_is_refused_before_anything_is_sent(polar: Polar, folder: Path) -> None:
    (folder / "bad.toml").write_text('[[tasks]]\ninstruction = "x"\n[[tasks]]\nharness = "nobody"\n')
    refused = polar("submit", "bad.toml")
    assert refused.exit_code == 2 and "instruction: missing" in refused.stderr
    assert json.loads(polar("ls", "--json").stdout)["tasks"] == []


def test_waiting_ends_in_the_summary(polar: Polar, node: FakeNode) -> None:
    serving = threading.Thread(target=node.serve, args=(3,))
    serving.start()
    result = polar("submit", "tasks.toml", "--wait")
    serving.join()
    lines = lines_of(result)
    assert lines[0].startswith("task | rewards | mean")
    assert lines[1].startswith("add | 0.0 0.2 | 0.12 | 4 | 2 | 10 | - | 0.8 | 0.5 | 2.5 | 0.5")
    assert lines[-1] == "15 sampled tokens = 15 trainable, each in exactly one trace, + 0 dropped"
    assert re.search(r"add-0 +COMPLETED +reward 0.00 +2 calls +5 trainable tokens +4.2 s", result.stderr)


def test_waiting_tells_of_failures_by_its_exit_code(polar: Polar, node: FakeNode, folder: Path) -> None:
    (folder / "one.toml").write_text('[[tasks]]\ntask_id = "one"\ninstruction = "x"\nnum_samples = 2\n')

    def serve() -> None:
        for session_id in node.lease(room=1, wait_s=20) + node.lease(room=1, wait_s=20):
            agent = session_id == "one-0"
            failure = Failure(where="harness", type="HarnessError", message="ended with 1", agent=agent)
            node.finish(session_id, stage=Stage.FAILED, failure=failure, score=None)

    serving = threading.Thread(target=serve)
    serving.start()
    result = polar("submit", "one.toml", "--wait", "--json")
    serving.join()
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["tasks"], told["stages"], len(told["results"])) == (["one"], {"FAILED": 2}, 2)
    assert result.stderr == "", "JSON is asked for by programs"


@pytest.mark.usefixtures("node")
def test_ctrl_c_ends_the_wait_and_not_the_tasks(folder: Path, service: Service) -> None:
    main = "from polar.cli.app import main; main()"
    command = [sys.executable, "-c", main, "submit", "tasks.toml", "--wait", "--server", service.url]
    with (
        SyncPolarClient(service.url) as client,
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child,
    ):
        while len(client.tasks()) < 2:
            assert child.poll() is None
        node = FakeNode(service.url)
        node.lease()
        node.finish("add-0")
        assert child.stderr is not None and child.stdout is not None
        assert child.stderr.readline().startswith("add-0")
        child.send_signal(signal.SIGINT)
        assert child.wait(HANG_S) == 130
        assert "add" in child.stdout.read() and "the tasks go on at the server" in child.stderr.read()
        assert not client.task("add").done


def test_sessions_tasks_and_groups_are_cancelled(polar: Polar) -> None:
    polar("submit", "tasks.toml")
    assert lines_of(polar("cancel", "add-1")) == ["session add-1: 1 session cancelled"]
    told = "session add-1: no sessions cancelled: it had already ended, CANCELLED"
    assert lines_of(polar("cancel", "add-1")) == [told]
    assert json.loads(polar("cancel", "sums", "--group", "--json").stdout) == {"group": "sums", "cancelled": 1}
    assert lines_of(polar("cancel", "add", "--task")) == ["task add: no sessions cancelled"]
    assert polar("cancel", "add", "--task", "--group").exit_code == 2
    refused = polar("cancel", "nobody")
    assert (refused.exit_code, refused.stdout) == (2, "") and "no session 'nobody'" in refused.stderr


def test_a_cancel_says_who_has_yet_to_act_on_it(polar: Polar, node: FakeNode) -> None:
    polar("submit", "tasks.toml")
    node.lease()
    node.beat("add-0", Stage.RUNNING)
    told = f"it is in RUNNING at {node.node_id}, which stops it with its next heartbeat"
    assert lines_of(polar("cancel", "add-0")) == [f"session add-0: 1 session cancelled: {told}"]
    assert node.beat("add-0", Stage.RUNNING) == ["add-0"]


def test_nodes_are_listed_with_their_health(polar: Polar, node: FakeNode) -> None:
    polar("submit", "tasks.toml")
    node.lease()
    shown = polar("nodes").stdout
    assert f"{node.node_id}  fake:1  well" in shown and "add-0" in shown
    node.fall_sick("engine", "connection refused")
    shown = polar("nodes").stdout
    assert "sick" in shown and "connection refused" in shown and "engine, since" in shown
    (row,) = json.loads(polar("nodes", "--json").stdout)["nodes"]
    assert (row["state"], row["sick"]["part"], row["sessions"]) == ("sick", "engine", ["add-0"])


def test_without_nodes_it_says_how_to_start_one(polar: Polar) -> None:
    assert "no node is registered" in polar("nodes").stdout


def test_tasks_are_listed(polar: Polar, node: FakeNode, service: Service) -> None:
    assert lines_of(polar("ls")) == [f"no tasks at {service.url}; `polar submit` submits some"]
    polar("submit", "tasks.toml")
    node.lease()
    node.finish("add-0")
    header, unnamed, add = lines_of(polar("ls"))
    assert header.split(" | ")[:5] == ["task", "group", "submitted", "samples", "sessions"]
    assert unnamed.startswith("task-") and unnamed.endswith("1 | QUEUED 1")
    assert add.startswith("add | sums | ") and add.endswith("2 | COMPLETED 1 QUEUED 1")
    listed = json.loads(polar("ls", "--json").stdout)
    assert listed["server"] == service.url
    assert listed["tasks"][1]["stages"] == {"COMPLETED": 1, "QUEUED": 1}


def test_the_sessions_of_a_task_are_listed(polar: Polar, node: FakeNode) -> None:
    polar("submit", "tasks.toml")
    node.lease()
    node.finish("add-0")
    header, first, second = lines_of(polar("ls", "add"))
    assert header.split(" | ")[:4] == ["session", "stage", "reward", "calls"]
    assert first == "add-0 | COMPLETED | 1.000 | 2 | 1 | 5 | -"
    assert second == "add-1 | QUEUED | - | - | - | - | -"
    sessions = json.loads(polar("ls", "add", "--json").stdout)["sessions"]
    assert [(row["session_id"], row["sampled_tokens"]) for row in sessions] == [("add-0", 5), ("add-1", None)]
    assert "no task 'nobody'" in polar("ls", "nobody").stderr


def test_a_finished_session_is_shown_like_a_local_one(polar: Polar, node: FakeNode, service: Service) -> None:
    polar("submit", "tasks.toml")
    node.lease()
    node.finish("add-0")
    lines = lines_of(polar("show", "add-0"))
    at = f"server {service.url} | node {node.node_id} (fake:1)"
    assert lines[0] == f"session add-0 | {at} | attempt 1 | COMPLETED"
    assert lines[2] == "task add: add 2 and 2"
    walk = lines.index(next(line for line in lines if line.startswith("from ")))
    assert [line.split(" | ", 1)[1] for line in lines[walk + 2 : walk + 10]] == [
        "0.250 s | QUEUED",
        "0.750 s | INIT",
        "0.500 s | READY",
        "2.500 s | RUNNING",
        "0.250 s | call 1.1 | 4 | - | 3 | stop | agent | starts",
        "0.250 s | call 1.2 | 11 | - | 2 | stop | agent | continues 1.1",
        "0.500 s | POSTRUN",
        "- | COMPLETED",
    ]
    assert "reward 1.000" in lines and "as scripted" in lines
    assert "0 | agent | 4 | 9 | 5 | 2 | 1.000" in lines


def test_the_conversation_and_a_call_of_a_session(polar: Polar, node: FakeNode) -> None:
    polar("submit", "tasks.toml")
    node.lease()
    node.finish("add-0")
    said = polar("show", "add-0", "--messages").stdout
    assert said.startswith("=== agent, 2 calls\n") and "assistant  call 1.2, 2 tokens sampled, stop" in said
    assert "continues the tokens of call 1.1" in polar("show", "add-0", "--call", "2").stdout
    assert "has no calls yet: QUEUED" in polar("show", "add-1", "--messages").stdout


def test_files_that_were_not_uploaded_are_named_as_missing(polar: Polar, node: FakeNode, folder: Path) -> None:
    polar("submit", "tasks.toml")
    node.lease()
    told = polar("fetch", "add-1", "waiting").stdout
    assert "no logs: they come with the result, and the session is in QUEUED" in told
    node.finish("add-0")
    assert "no logs: its node uploaded none" in polar("fetch", "add-0", "copy").stdout
    assert json.loads((folder / "copy" / "session.json").read_text())["session"]["session_id"] == "add-0"
    assert "its node uploaded no files" in polar("show", "add-0").stdout


def test_tokens_and_json_of_a_session(polar: Polar, node: FakeNode, service: Service) -> None:
    polar("submit", "tasks.toml")
    node.lease()
    node.finish("add-0")
    assert "trace 0: 5 of 9 tokens trainable\n<hi>⟦abc⟧<ok>⟦de⟧\n" in polar("show", "add-0", "--tokens").stdout
    shown = json.loads(polar("show", "add-0", "--json", "--tokens").stdout)
    assert (shown["server"], shown["session"]["stage"], shown["task"]["task_id"]) == (
        service.url, "COMPLETED", "add",
    )  # fmt: skip
    assert [call["call_id"] for call in shown["calls"]] == ["add-0.1.1", "add-0.1.2"]
    assert shown["traces"][0]["loss_mask"] == [1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert "run_id" not in shown


def test_sessions_that_wait_run_or_were_cancelled_are_shown_as_far_as_they_got(
    polar: Polar, node: FakeNode
) -> None:
    polar("submit", "tasks.toml")

    def stages(session_id: str) -> list[str]:
        return [step["stage"] for step in json.loads(polar("show", session_id, "--json").stdout)["stages"]]

    assert stages("add-1") == ["QUEUED"]
    node.lease()
    node.beat("add-0", Stage.INIT)
    node.beat("add-0", Stage.RUNNING)
    assert stages("add-0") == ["QUEUED", "INIT", "RUNNING"]
    polar("cancel", "add-1")
    assert stages("add-1") == ["QUEUED", "CANCELLED"]
    assert "no traces" in polar("show", "add-1").stdout


def test_the_address_may_come_from_the_environment(
    folder: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_SERVER", service.url)
    assert CliRunner().invoke(app, ["submit", "tasks.toml"]).exit_code == 0
    assert "add | sums" in "\n".join(lines_of(CliRunner().invoke(app, ["ls"])))
    assert CliRunner().invoke(app, ["cancel", "add-0"]).exit_code == 0
    assert "server http" in CliRunner().invoke(app, ["show", "add-0"]).stdout
    local = CliRunner().invoke(app, ["show", "add-0", "--run", "2026"])
    assert "no runs in polar-runs" in local.stderr, "a run is local"
    monkeypatch.delenv("POLAR_SERVER")
    assert "no runs in polar-runs" in CliRunner().invoke(app, ["ls"]).stdout


def test_a_missing_server_is_an_error_of_one_line(folder: Path) -> None:
    """At once: the default of a client would repeat its request for a minute."""
    commands = ("ls", "nodes", "resume", "pause --wait", "events", "show add-0", "cancel add-0")
    sending = (
        "submit tasks.toml",
        "submit tasks.toml --wait",
        "eval tasks.toml",
        "export --to jsonl",
        "generate tasks.toml --out set",
    )
    for command in (*commands, *sending):
        result = CliRunner().invoke(app, [*command.split(), "--server", "http://127.0.0.1:9"])
        assert result.exit_code == 2, result.output
        assert "no rollout server answers at http://127.0.0.1:9" in result.stderr, command
        assert "`polar up`" in result.stderr and "POLAR_SERVER" in result.stderr
    assert not list((folder / "polar-runs").glob("*")), "an evaluation that cannot begin leaves no run"


def test_a_wrong_token_names_the_file(polar: Polar, tmp_path: Path) -> None:
    (tmp_path / "config" / "control-token").write_text("stale")
    result = polar("ls")
    assert result.exit_code == 2 and str(tmp_path / "config" / "control-token") in result.stderr


def test_the_example_trainer_runs_as_a_script_and_says_what_it_leaves_out(
    service: Service, node: FakeNode
) -> None:
    """Three samples that may be trained on, and one whose engine failed."""
    script = Path(__file__).parents[3] / "examples" / "trainer.py"

    def serve() -> None:
        node.serve(3)
        (broken,) = node.lease(wait_s=5)
        failure = Failure(where="engine", type="EngineError", message="out of memory")
        node.finish(broken, stage=Stage.FAILED, failure=failure)

    serving = threading.Thread(target=serve)
    serving.start()
    done = subprocess.run(
        [sys.executable, "-Werror", str(script), service.url], capture_output=True, text=True, env=os.environ
    )
    serving.join()
    assert (done.returncode, done.stderr) == (0, "")
    *sessions, broken, baseline, left_out = done.stdout.splitlines()
    assert [line.partition(": ")[2] for line in sessions] == [
        f"reward {reward}, trainable tokens of its traces [5]" for reward in (0.0, 0.25, 0.5)
    ]
    assert "left out (infrastructure): FAILED" in broken and "out of memory" in broken
    assert (baseline, left_out) == ("baseline 0.25 of 3", "left out: {'infrastructure': 1}")
    assert len(script.read_text().splitlines()) < 45
