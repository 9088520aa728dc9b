"""Podman's service for the length of a test: its own socket, storage and settings, and nothing left afterwards."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAMS = ("podman", "netavark", "catatonit", "runc")
FOLDERS = "/usr/lib/podman:/usr/libexec/podman:/usr/sbin:/sbin"
"""Where its helpers are, beside PATH."""
SETTINGS = """
[containers]
# Its own defaults are more than some machines allow.
default_ulimits = ["nofile={nofile}:{nofile}", "nproc={nproc}:{nproc}"]
[engine]
# The other one refuses machines with both kinds of control groups.
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
# How long a command that has ended is remembered, by two processes; 300 is the default.
exit_command_delay = 5
[network]
network_backend = "netavark"
"""
WAIT_S = 60.0


@contextmanager
def podman_service() -> Generator[str]:
    """Gives its address. As root, because only then it holds limits."""
    path = f"{os.environ['PATH']}:{FOLDERS}"
    if missing := [program for program in PROGRAMS if shutil.which(program, path=path) is None]:
        pytest.skip(f"{', '.join(missing)} missing: `make podman` installs it")
    if os.geteuid() != 0:
        pytest.skip("podman holds its limits only where it runs as root")
    folder = Path(tempfile.mkdtemp(prefix="polar-podman-"))
    (folder / "containers.conf").write_text(SETTINGS.format(**_ulimits()))
    podman = ["podman", "--root", f"{folder}/root", "--runroot", f"{folder}/run", "--tmpdir", f"{folder}/tmp"]
    podman += ["--storage-driver", "overlay", "--network-config-dir", f"{folder}/networks"]
    env = {**os.environ, "CONTAINERS_CONF": f"{folder}/containers.conf"}
    socket = folder / "podman.sock"
    with (folder / "service.log").open("wb") as log:
        serve = [*podman, "system", "service", "--time", "0", f"unix://{socket}"]
        service = subprocess.Popen(serve, env=env, cwd=folder, stdout=log, stderr=log)
    try:
        _wait(lambda: socket.exists() or service.poll() is not None)
        assert socket.exists(), (folder / "service.log").read_text()[-2000:]
        yield f"unix://{socket}"
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait()
        subprocess.run([*podman, "rm", "--all", "--force"], env=env, cwd=folder, capture_output=True)
        # What watches over commands calls podman once more when it ends, which would make the folder anew.
        _wait(lambda: not _processes_of(folder))
        subprocess.run(["umount", str(folder / "root" / "overlay")], capture_output=True)
        shutil.rmtree(folder)


def _ulimits() -> dict[str, int]:
    """What a process may have here at most; podman gives itself no more processes than the kernel has ids for."""
    (_, nofile), (_, nproc) = (
        resource.getrlimit(name) for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    )
    ids = int(Path("/proc/sys/kernel/pid_max").read_text())
    return {"nofile": nofile, "nproc": ids if nproc == resource.RLIM_INFINITY else min(ids, nproc)}


def _processes_of(folder: Path) -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in words:
                found.append(entry.name)
    return found


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
