"""Network for the prepare steps only: before `prepared` a session reaches a listener, afterwards it does not."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from bubblewrap_bench import bash, begin
from docker_machine import StartDocker, container_of, processes_in

from polar.config import PermitConfig
from polar.errors import NotPermitted, RuntimeFailure
from polar.runtimes.base import SessionFolders
from polar.runtimes.bubblewrap.runtime import BubblewrapOptions, BubblewrapRuntime
from polar.runtimes.docker.api import connected
from polar.session.files.workspace import WorkspaceError, prepare
from polar.types import PrepareStep, TaskRequest

pytestmark = pytest.mark.check
PERMITS = PermitConfig(prepare_network=True)
LISTEN = """
import socket
listener = socket.create_server(("0.0.0.0", 0))
print(listener.getsockname()[1], flush=True)
input()
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """On the node's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
async def bubblewrap_session(bubblewrap: None, tmp_path: Path) -> AsyncIterator[BubblewrapRuntime]:
    runtime = BubblewrapRuntime(BubblewrapOptions(prepare_network="open"))
    await runtime.start(SessionFolders("s-1", tmp_path / "root", tmp_path / "logs", permits=PERMITS))
    yield runtime
    await runtime.stop()


def connect_to(host: str, port: int) -> str:
    return f"exec 3<>/dev/tcp/{host}/{port}"


async def test_only_prepare_steps_of_bubblewrap_reach_the_node(
    bubblewrap_session: BubblewrapRuntime, listener: socket.socket
) -> None:
    connect = bash(connect_to("127.0.0.1", listener.getsockname()[1]))
    assert (await bubblewrap_session.exec(connect)).exit_code == 0
    with pytest.raises(RuntimeFailure, match="still open"):
        await bubblewrap_session.listener()
    await bubblewrap_session.prepared()
    assert (await bubblewrap_session.exec(connect)).exit_code == 1
    gateway = await bubblewrap_session.listener()
    assert gateway is not None
    with gateway:
        inside = bash(connect_to("127.0.0.1", gateway.getsockname()[1]))
        assert (await bubblewrap_session.exec(inside)).exit_code == 0


async def test_what_a_prepare_step_left_running_is_dead_before_the_agent_starts(
    bubblewrap_session: BubblewrapRuntime,
) -> None:
    await bubblewrap_session.exec(bash("(setsid sleep 1234.5 &) ; sleep 0.1"))
    slow = await begin(bubblewrap_session, "touch ready; sleep 1234.5")
    await bubblewrap_session.prepared()
    assert (await slow).exit_code != 0
    assert not any("1234.5" in line for line in _command_lines())


async def test_name_servers_are_shown_to_prepare_only(bubblewrap_session: BubblewrapRuntime) -> None:
    show = bash("cat /etc/resolv.conf")
    assert (await bubblewrap_session.exec(show)).stdout_tail == Path("/etc/resolv.conf").read_text()
    await bubblewrap_session.prepared()
    assert (await bubblewrap_session.exec(show)).stdout_tail == ""


async def test_the_steps_of_a_task_have_it_and_the_session_does_not(
    bubblewrap_session: BubblewrapRuntime, listener: socket.socket
) -> None:
    connect = f"bash -c '{connect_to('127.0.0.1', listener.getsockname()[1])}'"
    await prepare(bubblewrap_session, TaskRequest(instruction="x", prepare=(PrepareStep(run=connect),)))
    assert (await bubblewrap_session.exec(bash(connect))).exit_code == 1
    with pytest.raises(WorkspaceError):
        await prepare(bubblewrap_session, TaskRequest(instruction="x", prepare=(PrepareStep(run=connect),)))


async def test_the_operator_has_to_permit_it(bubblewrap: None, tmp_path: Path) -> None:
    runtime = BubblewrapRuntime(BubblewrapOptions(prepare_network="open"))
    with pytest.raises(NotPermitted, match=r"permits\.prepare_network is off"):
        await runtime.start(SessionFolders("s-1", tmp_path / "root", tmp_path / "logs"))
    await runtime.stop()


@pytest.fixture
async def neighbour(start_docker: StartDocker) -> AsyncIterator[tuple[str, int]]:
    """Address of a listener in another container on the Docker Engine's bridge."""
    other = await start_docker(network="open")
    async with connected() as api:
        seen: dict[str, Any] = await api.call("GET", f"/containers/{await container_of(other)}/json")
    argv = ["nsenter", "--target", str(seen["State"]["Pid"]), "--net", sys.executable, "-c", LISTEN]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    yield seen["NetworkSettings"]["Networks"]["bridge"]["IPAddress"], int(await process.stdout.readline())
    await process.communicate(b"\n")


async def test_only_prepare_steps_of_docker_reach_its_bridge(
    start_docker: StartDocker, neighbour: tuple[str, int]
) -> None:
    runtime = await start_docker(prepare_network="open", permits=PERMITS)
    await runtime.put("kept", b"a file of the workspace")
    assert (await runtime.exec(bash(connect_to(*neighbour)))).exit_code == 0
    await runtime.exec(bash("sleep 1234.5 & echo started"))
    await runtime.prepared()
    assert processes_in(await container_of(runtime)) == []
    assert (await runtime.exec(bash(connect_to(*neighbour)))).exit_code == 1
    assert (await runtime.exec(bash("cat /proc/net/dev"))).stdout_tail.count(":") == 1  # loopback
    assert await runtime.get("kept") == b"a file of the workspace"


async def test_a_container_that_starts_again_has_no_network_either(
    start_docker: StartDocker, neighbour: tuple[str, int]
) -> None:
    runtime = await start_docker(prepare_network="open", permits=PERMITS)
    await runtime.prepared()
    await runtime.kill()
    assert (await runtime.exec(bash(connect_to(*neighbour)))).exit_code == 1


def _command_lines() -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return found
