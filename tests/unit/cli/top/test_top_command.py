"""`polar top` as a command: one snapshot as text or JSON, and clear refusals."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner, Result

from polar.cli.app import app
from polar.types.service.overview import Overview

from .fake_service import FakeService, an_overview

Top = Callable[..., Result]


@pytest.fixture
def url() -> Iterator[str]:
    """A fake service in a thread of its own: the command has an event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    fake = FakeService()

    yield asyncio.run_coroutine_threadsafe(fake.start(), loop).result()
    asyncio.run_coroutine_threadsafe(fake.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def top(url: str, monkeypatch: pytest.MonkeyPatch) -> Top:
    monkeypatch.setenv("POLAR_SERVER", url)
    return lambda *arguments: CliRunner().invoke(app, ["top", *arguments])


def test_a_snapshot_is_plain_text(top: Top) -> None:
    result = top("--once")
    assert result.exit_code == 0 and "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        "polar 0.1.0 at 2026-11-15 05:12:33",
        "policy step-12, 12 updates: generating  slots 2 busy, 2 free",
    ]
    assert "node-2" in result.stdout and "connection refused at 127.0.0.1:8000" in result.stdout
    assert next(line for line in lines if line.startswith("sort-1")).endswith("budgets.run_s is 300")


def test_without_a_terminal_it_is_a_snapshot(top: Top) -> None:
    assert top().stdout == top("--once").stdout


def test_json_is_the_overview(top: Top) -> None:
    assert Overview.model_validate(json.loads(top("--json").stdout)) == an_overview()


@pytest.mark.parametrize("words", [(), ("--once",), ("--json",)])
def test_where_no_server_answers_it_ends_at_once(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setenv("POLAR_SERVER", "http://127.0.0.1:9")
    refused = CliRunner().invoke(app, ["top", *words])
    assert refused.exit_code == 2 and "no rollout server answers at http://127.0.0.1:9" in refused.stderr


def test_in_a_terminal_it_draws_until_q(url: str) -> None:
    main, inner = pty.openpty()
    command = [sys.executable, "-c", "from polar.cli.app import main; main()", "top", "--server", url]
    with subprocess.Popen(
        command, stdin=inner, stdout=inner, stderr=inner, env={**os.environ, "TERM": "xterm-256color"}
    ) as child:
        os.close(inner)
        drawn = b""
        while b"STUCK" not in drawn:
            drawn += os.read(main, 65536)
        os.write(main, b"q")
        try:
            while os.read(main, 65536):
                pass
        except OSError:  # Linux says so when the other side is closed
            pass
        assert child.wait() == 0
    os.close(main)
