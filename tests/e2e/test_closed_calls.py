"""System calls that are closed in every contained runtime, tried by a program inside: sockets of odd
families, also by the 32-bit and x32 numbers, io_uring, keys and namespaces."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from runtime_loop import CONTAINED, need

from polar import registry
from polar.runtimes.base import Command, Runtime, SessionFolders

SOURCE = Path(__file__).with_name("closed_calls.c")
NEEDED = {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK", "pair of AF_UNIX"}
"""What programs need: the filter must not close more than it should."""
BY_OTHER_NUMBERS = {"AF_UNIX by 32 bits", "AF_UNIX by x32"}
"""Allowed too; whether it works depends on how the kernel was built."""
THREADS = """
import socket, subprocess, sys, threading
started = threading.Thread(target=print, args=("thread",)); started.start(); started.join()
print(subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True, text=True).stdout.strip())
a, b = socket.socketpair(); a.send(b"x"); print(b.recv(1))
print(socket.if_nameindex()[0][1])
"""
"""Threads begin with clone3, which is closed where a filter cannot look into it: libraries use clone then."""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Static, for runtimes without a C library; not position-independent: its memory has 32-bit addresses."""
    made = tmp_path_factory.mktemp("probe") / "probe"
    subprocess.run(["gcc", "-static", "-no-pie", "-O1", "-o", str(made), str(SOURCE)], check=True)
    return made.read_bytes()


@asynccontextmanager
async def started(name: str, folder: Path) -> AsyncGenerator[Runtime]:
    spec = await need(name)
    found: type[Runtime] = registry.find("runtime", name)
    runtime = registry.make("runtime", spec)
    assert isinstance(runtime, found)
    (folder / "logs").mkdir()
    await runtime.start(SessionFolders("s-1", folder / "root", folder / "logs"))
    try:
        yield runtime
    finally:
        await runtime.stop()


def opened(output: str) -> set[str]:
    ends = dict(line.split(": ", 1) for line in output.splitlines())
    assert len(ends) > 15, output
    return {name for name, end in ends.items() if end == "open"}


@pytest.mark.check
def test_the_probe_opens_more_without_a_runtime(probe: bytes, tmp_path: Path) -> None:
    """Else the tests below could not fail: this kernel has io_uring, or AF_VSOCK, or one of the others."""
    (tmp_path / "probe").write_bytes(probe)
    (tmp_path / "probe").chmod(0o755)
    plain = subprocess.run([tmp_path / "probe"], capture_output=True, text=True, check=True).stdout
    assert opened(plain) >= NEEDED
    assert opened(plain) - NEEDED - BY_OTHER_NUMBERS


@pytest.mark.parametrize("runtime", CONTAINED)
async def test_only_what_programs_need_is_open(runtime: str, probe: bytes, tmp_path: Path) -> None:
    async with started(runtime, tmp_path) as session:
        await session.put("probe", probe, executable=True)
        finished = await session.exec(Command(("./probe",)))
    assert finished.exit_code == 0, finished
    found = opened(finished.stdout_tail)
    assert found >= NEEDED
    assert found - NEEDED <= BY_OTHER_NUMBERS, f"open in {runtime}: {sorted(found - NEEDED)}"


@pytest.mark.parametrize("runtime", CONTAINED)
async def test_threads_children_and_sockets_work(runtime: str, tmp_path: Path) -> None:
    async with started(runtime, tmp_path) as session:
        finished = await session.exec(Command(("python3", "-c", THREADS)))
    assert (finished.exit_code, finished.stdout_tail.split("\n")) == (
        0,
        ["thread", "child", "b'x'", "lo", ""],
    ), finished
