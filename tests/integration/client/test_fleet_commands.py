"""What commands say of a fleet at a real rollout server: why sessions wait, what nodes can run, who did what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fake_node import CONTROL, FakeNode, Service
from polar.cli.app import app
from polar.cli.runs.progress import RunProgress
from polar.cli.service.remote_progress import watch_tasks
from polar.client import PolarClient, SyncPolarClient
from polar.types import Stage, TaskRequest
from waiting import hang_limit, until

Polar = Callable[..., Result]

TASKS = [{"task_id": "special", "instruction": "x", "num_samples": 2, "needs": {"labels": ["tpu"]}}]
NO_TPU = "no live node has the label tpu (1 node: gpu)"


@pytest.fixture
def polar(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Polar:
    monkeypatch.setenv("POLAR_SERVER", service.url)
    monkeypatch.setenv("COLUMNS", "220")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.json").write_text(json.dumps(TASKS))
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


@pytest.fixture
def gpu(service: Service) -> FakeNode:
    return FakeNode(service.url, "gpu-1:1", 4, labels=["gpu"], engine="vllm", model="Qwen/Qwen3-8B")


@pytest.mark.usefixtures("gpu")
def test_a_task_that_no_node_can_run_is_noted_where_it_is_submitted(polar: Polar) -> None:
    submitted = polar("submit", "tasks.json")
    assert submitted.exit_code == 0, submitted.output
    assert submitted.stdout.startswith(f"task special: 2 sessions; waits: {NO_TPU}\n")


def test_words_of_a_node_cannot_disturb_the_terminal(polar: Polar, service: Service) -> None:
    FakeNode(service.url, labels=["\x1b[2J"])
    submitted = polar("submit", "tasks.json").stdout
    assert "waits: no live node has the label tpu (1 node: ␛[2J)" in submitted and "\x1b" not in submitted


@pytest.mark.usefixtures("gpu")
def test_a_session_shows_why_it_waits(polar: Polar) -> None:
    polar("submit", "tasks.json")
    assert f"waits: {NO_TPU}\n" in polar("show", "special-0").stdout
    assert json.loads(polar("show", "special-0", "--json").stdout)["waits"] == NO_TPU


@pytest.mark.usefixtures("gpu")
async def test_progress_says_why_no_session_begins(client: PolarClient) -> None:
    await client.submit(TASKS[0])
    progress = RunProgress([TaskRequest.model_validate(TASKS[0])], quiet=True)
    watching = asyncio.create_task(watch_tasks(client, ["special"], progress))
    async with hang_limit():
        await until(lambda: progress.words().endswith(f"waits: {NO_TPU}"))
        await client.cancel_task("special")
        await watching
    assert progress.words().startswith("2/2 done")


def test_a_session_that_a_node_has_does_not_wait(polar: Polar, service: Service) -> None:
    polar("submit", "tasks.json")
    FakeNode(service.url, labels=["tpu"]).lease(1)
    assert "waits" not in polar("show", "special-0").stdout
    assert json.loads(polar("show", "special-0", "--json").stdout)["waits"] == ""


def test_a_session_that_its_group_no_longer_needs_says_why(polar: Polar, service: Service) -> None:
    with SyncPolarClient(service.url, CONTROL) as client:
        client.submit({"task_id": "add", "instruction": "x", "num_samples": 2, "enough": 1})
    node = FakeNode(service.url)
    [first] = node.lease(1)
    node.finish(first)
    shown = polar("show", "add-1").stdout
    assert Stage.CANCELLED in shown and "\ncancelled: " in shown and "enough" in shown


@pytest.mark.usefixtures("gpu")
def test_nodes_say_what_they_can_run(polar: Polar) -> None:
    shown = polar("nodes").stdout
    assert "vllm Qwen/Qwen3-8B; labels gpu" in shown and "docker" in shown
    (row,) = json.loads(polar("nodes", "--json").stdout)["nodes"]
    assert (row["abilities"]["labels"], row["abilities"]["engine"]) == (["gpu"], "vllm")


@pytest.mark.usefixtures("gpu")
def test_actions_are_chosen_by_number_and_by_refusal(polar: Polar) -> None:
    polar("submit", "tasks.json")
    assert polar("cancel", "gone").exit_code == 2
    lines = polar("actions").stdout.splitlines()
    assert [line.split()[3] for line in lines] == ["nodes.register", "tasks.submit", "sessions.cancel"]
    [refused] = polar("actions", "--refused").stdout.splitlines()
    assert refused == lines[2] and "there is no session" in refused
    assert polar("actions", "--after", lines[0].split()[0], "--count", "1").stdout.splitlines() == [lines[1]]
    [entry] = map(json.loads, polar("actions", "--count", "1", "--json").stdout.splitlines())
    assert (entry["outcome"], entry["detail"]["session_id"]) == ("refused", "gone")


def test_a_token_is_rotated_with_an_overlap(polar: Polar, tmp_path: Path) -> None:
    file = tmp_path / "config" / "control-token"
    rotated = polar("token", "rotate", "control", "--overlap", "12h")
    assert rotated.exit_code == 0 and f"is in {file}; the old one ends 2" in rotated.stdout
    assert file.read_text() not in ("", CONTROL), "only there: it is not printed"
    assert file.read_text() not in rotated.output
    listed = polar("token", "ls").stdout
    assert "yes" in listed and "until " in listed


def test_a_variable_that_hides_the_new_token_is_named(polar: Polar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_CONTROL_TOKEN", CONTROL)
    rotated = polar("token", "rotate", "control", "--now")
    assert "the old one has ended\n" in rotated.stdout
    assert "POLAR_CONTROL_TOKEN is set here and still holds the old one" in rotated.stdout
    assert polar("token", "ls").exit_code == 2, "the old one is refused"


@pytest.mark.parametrize("words", [["other"], ["control", "--overlap", "12"]])
def test_a_wrong_kind_or_overlap_is_refused_before_anything_is_made(
    polar: Polar, tmp_path: Path, words: list[str]
) -> None:
    assert polar("token", "rotate", *words).exit_code == 2
    assert (tmp_path / "config" / "control-token").read_text() == CONTROL
    assert not list((tmp_path / "config").glob("*.next"))


def test_a_server_without_tls_is_named_as_such(polar: Polar, service: Service) -> None:
    refused = polar("nodes", "--server", service.url.replace("http://", "https://"))
    assert refused.exit_code == 2 and "no connection to the rollout server at https://" in refused.output
    assert "it does not speak TLS there" in " ".join(refused.output.split())
