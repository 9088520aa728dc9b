"""`polar view --server`: sessions of a real rollout server as files, and served here with those of their task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from fake_node import FakeNode, Service
from polar.cli.app import app
from polar.cli.view.server_view import TaskSource
from polar.client import PolarClient
from polar.dashboard.site import ViewerSite

Polar = Callable[..., Result]
TASKS = """
[[tasks]]
task_id = "add"
instruction = "add 2 and 2"
num_samples = 2
harness = { name = "shell", options = { command = "true" } }
"""


@pytest.fixture
def polar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: Service) -> Polar:
    """In a folder with tasks and without a renderer of the server's model."""
    (tmp_path / "tasks.toml").write_text(TASKS)
    (tmp_path / "polar.toml").write_text('[model]\nrenderer = "not_here:Renderer"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "220")
    return lambda *arguments: CliRunner().invoke(app, [*arguments, "--server", service.url])


@pytest.fixture
def finished(polar: Polar, node: FakeNode) -> Polar:
    """`add-0` has ended, `add-1` waits."""
    polar("submit", "tasks.toml")
    node.lease()
    node.finish("add-0")
    return polar


def test_a_finished_session_becomes_one_file(finished: Polar, tmp_path: Path) -> None:
    done = finished("view", "add-0", "--html", "page.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text()
    assert "<title>session add-0" in page and "Tokens are shown as numbers" in page


def test_two_builders_of_a_session_at_a_server(finished: Polar, tmp_path: Path) -> None:
    done = finished("view", "add-0", "--against-builder", "per_request", "--html", "page.html")
    assert done.exit_code == 0, done.output
    assert "<title>add-0 compared" in (tmp_path / "page.html").read_text()


def test_for_a_session_that_has_not_ended_the_dashboard_is_named(finished: Polar, service: Service) -> None:
    done = finished("view", "add-1", "--html", "page.html")
    assert done.exit_code == 0, done.output
    assert f"{service.url}/sessions/add-1 follows it" in done.stdout


def test_what_the_server_does_not_have_is_refused(finished: Polar) -> None:
    refused = finished("view", "add-9", "--html", "page.html")
    assert refused.exit_code == 2 and "has no session 'add-9'; give its whole id" in refused.stderr
    unnamed = finished("view")
    assert unnamed.exit_code == 2 and "name a session of" in unnamed.stderr


async def test_the_sessions_of_the_task_are_served(finished: Polar, service: Service) -> None:
    async with PolarClient(service.url) as client:
        site = ViewerSite(TaskSource(client, "add"), lambda ids: "".join(map(chr, ids))).app()
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(site), base_url="http://127.0.0.1:1"
        ) as browser:
            listed = await browser.get("/")
            assert "task add at" in listed.text and '"session_id":"add-1"' in listed.text
            session = await browser.get("/sessions/add-0")
            assert session.status_code == 200 and '"run_id":""' in session.text
            found = (await browser.get("/search", params={"q": "abc"})).json()
            assert found["more"] is False
            assert (await browser.get("/sessions/add-9")).status_code == 404
