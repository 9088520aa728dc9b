"""`polar view`: one file for one session; a run at an address of this machine until Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from polar.store.paths import RunPaths
from waiting import HANG_S

Polar = Callable[..., Result]
MAIN = "from polar.cli.app import main; main()"


def test_a_session_becomes_one_file(run: RunPaths, polar: Polar, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = polar("view", "add-0", "--html", str(file))
    assert done.exit_code == 0, done.output
    assert f"{file}: session add-0, 0." in done.stdout
    assert "<title>session add-0" in file.read_text()


def test_two_builders_become_one_file(run: RunPaths, polar: Polar, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = polar("view", "add-0", "--against-builder", "per_request", "--html", str(file))
    assert done.exit_code == 0, done.output
    assert "<title>add-0 compared" in file.read_text()


def test_two_sessions_become_one_file(run: RunPaths, polar: Polar, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = polar("view", "add-0", "--against", "add-1", "--html", str(file))
    assert done.exit_code == 0, done.output
    assert f"{file}: session add-0 and add-1" in done.stdout
    assert "<title>add-0 and add-1 compared" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "add-1"], "name the session to compare"),
        (["add-0", "--against", "add-9", "--html", "page.html"], "no session 'add-9'"),
        (
            ["add-0", "--against-builder", "my:Builder"],
            "served pages build with per_request, prefix_merging",
        ),
        (["add-0", "--builder", "trie", "--html", "page.html"], "unknown builder 'trie'"),
        (["--html", "page.html"], "--html writes one session: name it"),
        (["add-9", "--html", "page.html"], "no session 'add-9' in any run"),
        (["add-0", "--html", "no/such/folder/page.html"], "cannot write no/such/folder/page.html"),
        (["nothing"], "no session 'nothing' in any run"),
    ],
)
def test_what_cannot_be_shown_is_refused(run: RunPaths, polar: Polar, arguments: list[str], message: str) -> None:
    refused = polar("view", *arguments)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert message in refused.stderr


def test_a_port_that_is_taken_is_named(run: RunPaths, polar: Polar) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = polar("view", "--port", str(taken.getsockname()[1]))
    assert refused.exit_code == 2
    assert "cannot serve at port" in refused.stderr and "--port 0" in refused.stderr


@pytest.mark.parametrize(
    ("what", "page"),
    [
        ([], "/"),
        (["2026"], "/"),
        (["add-0"], "/sessions/add-0"),
        (["add-0", "--against", "add-1"], "right=add-1&right_builder="),
    ],
)
def test_a_run_is_served_until_ctrl_c(run: RunPaths, what: list[str], page: str) -> None:
    command = [sys.executable, "-c", MAIN, "--runs-dir", str(run.root.parent), "view", *what]
    # The run's renderer is one of the tests.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as serving:
        assert serving.stdout is not None
        line = serving.stdout.readline()
        try:
            [address] = re.findall(r"http://127\.0\.0\.1:\d+/\S*", line)
            clean, _, _ = address.partition("code=")
            assert clean.rstrip("?&").endswith(page)
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(address, timeout=HANG_S) as answer:
                assert b'id="values"' in answer.read() and "code" not in answer.url
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(address, timeout=HANG_S)
        finally:
            serving.send_signal(signal.SIGINT)
        assert serving.wait(HANG_S) == 130


def test_enter_prints_another_address(run: RunPaths) -> None:
    command = [sys.executable, "-c", MAIN, "--runs-dir", str(run.root.parent), "view"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    terminal, its_side = os.openpty()
    with subprocess.Popen(command, stdin=its_side, stdout=subprocess.PIPE, text=True, env=environment) as serving:
        assert serving.stdout is not None
        try:
            first = serving.stdout.readline()
            os.write(terminal, b"\n")
            second = serving.stdout.readline()
            codes = [re.findall(r"code=(\S+)", line) for line in (first, second)]
            assert "Enter prints another" in first and len(codes[0]) == len(codes[1]) == 1 and codes[0] != codes[1]
        finally:
            serving.send_signal(signal.SIGINT)
            assert serving.wait(HANG_S) == 130
            os.close(its_side)
            os.close(terminal)
