"""`polar pause`, `resume`, `drain` and `events` at a real rollout server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fake_node import FakeNode, Service
from polar.cli.app import app
from polar.client import SyncPolarClient

Polar = Callable[..., Result]


@pytest.fixture
def polar(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Polar:
    """Finds the server in POLAR_SERVER."""
    monkeypatch.setenv("POLAR_SERVER", service.url)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def paused(service: Service) -> bool:
    with SyncPolarClient(service.url) as client:
        return client.policy().paused


def test_generation_is_paused_and_resumed(polar: Polar, service: Service) -> None:
    first = polar("pause")
    assert first.exit_code == 0 and "generation is paused; no generation is under way" in first.stdout
    assert paused(service)
    again = polar("resume")
    assert again.exit_code == 0 and "goes on" in again.stdout
    assert not paused(service)


def test_waiting_for_the_drain_ends_when_nothing_is_generated(polar: Polar) -> None:
    result = polar("pause", "--wait", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["done"]


def test_a_drain_that_takes_too_long_is_an_exit_code(polar: Polar, node: FakeNode, service: Service) -> None:
    result = polar("pause", "--wait", "--timeout", "0.1")
    assert result.exit_code == 1
    assert "not drained within 0.1 s: 0 generations are under way" in result.stderr
    assert f"not heard of it yet: {node.node_id}" in result.stderr
    assert paused(service), "it stays paused"


@pytest.fixture
def busy(polar: Polar, node: FakeNode, tmp_path: Path) -> Polar:
    """Two tasks of one group, a session each, of which one has its result."""
    tasks = [{"task_id": name, "instruction": "x", "group_id": "sums"} for name in ("one", "two")]
    tasks.append({"task_id": "other", "instruction": "x"})
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    assert polar("submit", "tasks.json").exit_code == 0
    node.lease()
    node.finish("one-0")
    return polar


def shown(result: Result) -> list[tuple[str, str | None]]:
    assert result.exit_code == 0, result.output
    events = [json.loads(line) for line in result.stdout.splitlines()]
    return [(event["kind"], event["session_id"] or event["task_id"] or event["node_id"]) for event in events]


def test_events_come_from_the_first_one_on(busy: Polar, node: FakeNode) -> None:
    assert shown(busy("events", "--json", "--count", "2")) == [("node", node.node_id), ("task", "one")]
    text = busy("events", "--count", "1").stdout
    assert "node" in text and "change=registered" in text and len(text.splitlines()) == 1


def test_events_can_be_chosen(busy: Polar, node: FakeNode) -> None:
    assert shown(busy("events", "--kind", "result", "--json", "--count", "1")) == [("result", "one-0")]
    group = shown(busy("events", "--group", "sums", "--kind", "task", "--json", "--count", "2"))
    assert group == [("task", "one"), ("task", "two")]
    assert shown(busy("events", "--task", "other", "--json", "--count", "1")) == [("task", "other")]
    of_session = shown(busy("events", "--session", "one-0", "--node", node.node_id, "--json", "--count", "1"))
    assert of_session[0][1] == "one-0"


def test_events_can_begin_later(busy: Polar) -> None:
    assert shown(busy("events", "--after", "1", "--json", "--count", "1")) == [("task", "one")]
    assert shown(busy("events", "--since", "1h", "--json", "--count", "1"))[0][0] == "node"


@pytest.mark.parametrize("words", [["--kind", "nonsense"], ["--since", "soon"], ["--group", "nobody"]])
def test_what_cannot_be_followed_is_refused(busy: Polar, words: list[str]) -> None:
    result = busy("events", *words, "--count", "1")
    assert result.exit_code == 2 and "Traceback" not in result.output


class TestDrain:
    def test_a_draining_node_only_keeps_the_sessions_it_has(self, busy: Polar, node: FakeNode) -> None:
        assert node.lease() == ["two-0"]
        result = busy("drain", node.node_id[:8])
        assert result.exit_code == 0 and "gets no more sessions; 1 to end: two-0" in result.stdout
        assert node.lease() == []
        assert "draining" in busy("nodes").stdout
        node.finish("two-0")
        done = json.loads(busy("drain", "fake:1", "--wait", "--json").stdout)
        assert done == {"node_id": node.node_id, "draining": True, "sessions": []}

    def test_it_can_be_undone(self, busy: Polar, node: FakeNode) -> None:
        busy("drain", node.node_id)
        assert busy("drain", node.node_id, "--undo").exit_code == 0
        assert node.lease() == ["two-0"]

    def test_nothing_would_run_if_all_nodes_drain(self, busy: Polar, node: FakeNode) -> None:
        busy("drain", node.node_id)
        assert "no live node to run sessions" in busy("submit", "tasks.json", "--wait").stderr

    def test_an_unknown_node_is_refused_with_the_known_ones(self, busy: Polar, node: FakeNode) -> None:
        result = busy("drain", "nobody")
        assert result.exit_code == 2 and f"known: {node.node_id} (fake:1)" in result.stderr

    def test_the_change_is_an_event(self, busy: Polar, node: FakeNode) -> None:
        busy("drain", node.node_id)
        busy("drain", node.node_id)
        busy("drain", node.node_id, "--undo")
        lines = busy("events", "--kind", "node", "--count", "3", "--json").stdout.splitlines()
        changes = [json.loads(line)["data"]["change"] for line in lines]
        assert changes == ["registered", "draining", "not draining"]


def test_every_command_finds_the_server_in_the_environment(polar: Polar, service: Service, node: FakeNode) -> None:
    assert node.node_id in polar("nodes").stdout
    assert f"no tasks at {service.url}" in polar("ls").stdout
    assert "1 registered" in polar("doctor", "--runtime", "local").stdout
