"""A socket that listens in a network without routes and is accepted from outside it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from polar.errors import RuntimeFailure
from polar.runtimes.host.netns_listener import open_listener
from skips import kernel_cannot
from waiting import HANG_S

CONNECT = (
    "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5); s.sendall(b'hello')"
)


@pytest.fixture
def island() -> Iterator[int]:
    """The process id of a shell in a network of its own, owned by the user who runs the test."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("unshare and nsenter are missing: install util-linux")
    shell = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo ready; read _"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert shell.stdin and shell.stdout and shell.stderr
    with shell.stdin, shell.stdout, shell.stderr:
        if shell.stdout.readline() != b"ready\n":
            kernel_cannot(f"user namespaces are closed here: {shell.stderr.read().decode().strip()}")
        yield shell.pid
        shell.kill()
        shell.wait()


def inside(pid: int, *arguments: str) -> subprocess.Popen[bytes]:
    enter = ["nsenter", "--target", str(pid), "--user", "--preserve-credentials", "--net"]
    return subprocess.Popen([*enter, sys.executable, "-I", "-S", "-c", *arguments])


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


async def test_who_listens_inside_is_reached_inside_and_accepts_outside(island: int) -> None:
    with await open_listener(island, user=True) as listener:
        address, port = listener.getsockname()
        assert address == "127.0.0.1"
        caller = inside(island, CONNECT, str(port))
        listener.setblocking(True)
        listener.settimeout(20)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(5) == b"hello"
        assert caller.wait(HANG_S) == 0


async def test_the_listener_is_not_in_the_nodes_network(island: int) -> None:
    with await open_listener(island, user=True) as listener:
        with socket.socket() as stranger:
            assert stranger.connect_ex(listener.getsockname()) != 0


async def test_no_child_of_the_node_inherits_the_listener(island: int) -> None:
    """Under uvloop it would: another session could accept what this one sends."""
    with await open_listener(island, user=True) as listener:
        assert not os.get_inheritable(listener.fileno())


async def test_a_network_that_cannot_be_joined_is_an_error() -> None:
    with pytest.raises(
        RuntimeFailure, match=r"the gateway cannot listen in the session's network: .*No such file"
    ):
        await open_listener(dead_process(), user=True)


async def test_a_port_below_1024_is_the_sessions_alone(island: int) -> None:
    with await open_listener(island, user=True, port=443) as listener:
        assert listener.getsockname() == ("127.0.0.1", 443)
        with pytest.raises(RuntimeFailure, match="Address already in use"):
            await open_listener(island, user=True, port=443)
