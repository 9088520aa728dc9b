"""`polar export --server`: the groups that are done, with calls and traces that a node uploaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from atif import Trajectory
from typer.testing import CliRunner

from fake_node import FakeNode, Service
from polar.cli.app import app
from polar.client import SyncPolarClient
from polar.data.export.jsonl import read_traces

HARNESS = {"name": "shell", "options": {"command": "true"}}
Export = Callable[..., dict[str, Any]]


@pytest.fixture
def client(service: Service) -> Any:
    with SyncPolarClient(service.url) as client:
        yield client


@pytest.fixture
def export(service: Service, tmp_path: Path) -> Export:
    """Exports into a folder of the test's and returns the report."""

    def export(name: str, *arguments: str) -> dict[str, Any]:
        command = ["export", "--server", service.url, "--out", str(tmp_path / name), "--json", *arguments]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return export


def submit(client: SyncPolarClient, task_id: str, samples: int = 2, **fields: Any) -> None:
    task = {"task_id": task_id, "instruction": "Do it.", "num_samples": samples, "harness": HARNESS}
    client.submit(task | fields)


def test_groups_that_are_done_are_exported_and_others_counted(
    client: SyncPolarClient, node: FakeNode, export: Export, service: Service, tmp_path: Path
) -> None:
    submit(client, "a")
    node.serve(2)
    submit(client, "b", samples=3)
    report = export("set", "--to", "jsonl")
    assert (report["server"], report["rows"]) == (service.url, 2)
    assert report["left_out"]["sessions"] == {"not_final": 3}
    read = list(read_traces(tmp_path / "set"))
    assert read == [*client.trajectory("a-0").traces, *client.trajectory("a-1").traces]
    lines = (tmp_path / "set/data/train-00000-of-00001.jsonl").read_text().splitlines()
    assert [json.loads(line)["advantage"] for line in lines] == [-1.0, 1.0]


def test_tasks_and_groups_can_be_chosen(
    client: SyncPolarClient, node: FakeNode, export: Export, tmp_path: Path
) -> None:
    submit(client, "a", 1)
    submit(client, "b", 1, group_id="pair")
    submit(client, "c", 1, group_id="pair")
    node.serve(3)
    export("one", "--to", "jsonl", "--task", "b")
    assert [trace.session_id for trace in read_traces(tmp_path / "one")] == ["b-0"]
    export("group", "--to", "jsonl", "--group", "pair", "--task", "a")
    assert sorted(trace.session_id for trace in read_traces(tmp_path / "group")) == ["a-0", "b-0", "c-0"]


def test_messages_come_from_the_calls_that_the_node_uploaded(
    client: SyncPolarClient, node: FakeNode, export: Export, tmp_path: Path
) -> None:
    submit(client, "a", 1)
    node.serve(1)
    export("sft", "--to", "sft", "--min-reward", "0")
    row = json.loads((tmp_path / "sft/data/train-00000-of-00001.jsonl").read_text())
    assert [(m["role"], m["content"]) for m in row["messages"]] == [
        ("user", "<hi>"),
        ("assistant", "abc"),
        ("user", "<ok>"),
        ("assistant", "de"),
    ]
    export("atif", "--to", "atif")
    document = Trajectory.model_validate_json((tmp_path / "atif/data/a-0.json").read_text())
    assert document.agent.name == "shell" and len(document.steps) == 4


def test_an_unknown_task_is_refused(service: Service, tmp_path: Path) -> None:
    command = ["export", "--server", service.url, "--out", str(tmp_path / "set"), "--task", "nine"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2 and "nine" in done.stderr
    assert not (tmp_path / "set").exists()
