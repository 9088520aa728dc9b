"""The script that starts a Docker Engine, with a small fake of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts/start-docker.sh"
ENGINE = f"""#!{sys.executable}
import http.server, os, socketserver

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words):
        pass

Answer.client_address = ("", 0)
socketserver.UnixStreamServer(os.environ["DOCKER_HOST"].removeprefix("unix://"), Answer).serve_forever()
"""


PROGRAMS = ("bash", "cat", "id", "mkdir", "nohup", "rm", "seq", "setsid", "sh", "sleep", "tail")


class Machine:
    """Its PATH has only what the script uses: the real Docker Engine is never found."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bin = folder / "bin"
        self._bin.mkdir()
        for program in PROGRAMS:
            found = shutil.which(program)
            assert found is not None, program
            (self._bin / program).symlink_to(found)
        (self._bin / "python3").symlink_to(Path(sys.executable).resolve())
        self.state = folder / "cache/docker"

    def has_dockerd(self, text: str) -> None:
        (self._bin / "dockerd").write_text(text)
        (self._bin / "dockerd").chmod(0o755)

    def run(self, *arguments: str) -> tuple[int, str]:
        env = {
            "PATH": str(self._bin),
            "HOME": str(self._folder),
            "POLAR_CACHE": str(self._folder / "cache"),
            "DOCKER_HOST": f"unix://{self._folder}/engine.sock",
        }
        done = subprocess.run([SCRIPT, *arguments], env=env, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    @property
    def process(self) -> str:
        return (self.state / "dockerd.pid").read_text().split()[0]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.run("stop")


def test_an_engine_is_started_once_and_stopped(machine: Machine) -> None:
    machine.has_dockerd(ENGINE)
    code, told = machine.run()
    assert code == 0 and f"started (process {machine.process}" in told
    assert machine.run() == (0, told.partition("started")[0] + f"an engine answers at {_address(machine)}\n")
    process = Path("/proc", machine.process)
    code, told = machine.run("stop")
    assert code == 0 and "stopped" in told
    assert not process.exists() or ") Z " in (process / "stat").read_text()
    assert machine.run("stop") == (0, "docker: nothing to stop, none was started here\n")


def _address(machine: Machine) -> str:
    return f"unix://{machine.state.parents[1]}/engine.sock"


def test_why_it_does_not_start_is_reported(machine: Machine) -> None:
    machine.has_dockerd("#!/bin/sh\necho no cgroups here\nexit 1\n")
    code, told = machine.run()
    assert code == 1 and "no cgroups here" in told
    assert not (machine.state / "dockerd.pid").exists()


def test_without_the_program_its_make_target_is_named(machine: Machine) -> None:
    code, told = machine.run()
    assert code == 1 and "`make docker` installs it" in told


def test_a_process_that_only_has_the_same_id_is_left_alone(machine: Machine) -> None:
    machine.state.mkdir(parents=True)
    (machine.state / "dockerd.pid").write_text(f"{os.getpid()} 12345\n")
    assert machine.run("stop") == (0, "docker: nothing to stop, none was started here\n")
