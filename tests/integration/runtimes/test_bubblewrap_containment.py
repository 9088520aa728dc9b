"""What a session in a bubblewrap cannot do: read or write the node's files, reach its network or its processes."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bubblewrap_bench import Sessions, alive_in, bash, begin, needs_bubblewrap, network_of, sh

from polar.errors import RuntimeFailure, WorkspaceUnusable
from polar.runs.event_loop import run_apart
from polar.runtimes.bubblewrap.runtime import BubblewrapRuntime
from polar.runtimes.host.cgroups import Hierarchy
from polar.runtimes.options import Limits
from skips import needs_kernel

pytestmark = needs_bubblewrap

NO_CGROUPS = Hierarchy().lacking(Limits.model_validate({"memory_bytes": "64MiB", "pids": 64, "cpus": 1}))
needs_cgroups = needs_kernel(NO_CGROUPS)


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    made = Sessions(tmp_path)
    yield made
    await made.stop()


@pytest.fixture
async def runtime(sessions: Sessions) -> BubblewrapRuntime:
    return await sessions.start(tail_bytes=100_000)


# Files


async def test_the_nodes_files_are_not_there(runtime: BubblewrapRuntime, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    for path in (
        tmp_path / "key",
        Path.home(),
        "/root",
        "/srv",
        "/var/lib",
        "/etc/shadow",
        "/etc/hostname",
        "/boot",
    ):
        finished = await runtime.exec(sh(f"cat {path}; ls {path}"))
        assert finished.stdout_tail == "", path
        assert finished.exit_code != 0


async def test_another_sessions_files_are_not_there(sessions: Sessions, runtime: BubblewrapRuntime) -> None:
    other = await sessions.start(sessions.folders("s-2"))
    await other.put("answer", b"42")
    await other.put("key", b"sk-2", home=True)
    finished = await runtime.exec(sh("cat /work/answer /home/polar/key; grep -rl 42 /work /home /tmp /dev/shm"))
    assert finished.stdout_tail == ""


async def test_nothing_outside_can_be_written(runtime: BubblewrapRuntime) -> None:
    paths = "/x /usr/x /usr/bin/env /etc/passwd /etc/ld.so.cache /opt/x /var/x /run/x /dev/x /proc/x"
    for path in paths.split():
        finished = await runtime.exec(sh(f": >>{path}"))
        assert finished.exit_code != 0, path
    assert (await runtime.exec(sh("touch /work/x /home/polar/x /tmp/x /var/tmp/x /dev/shm/x"))).exit_code == 0


async def test_the_kernels_settings_cannot_be_opened_for_writing(runtime: BubblewrapRuntime) -> None:
    """If the node is root, so is the session by its id, which is enough to open these files."""
    settings = ["kernel/panic", "kernel/core_pattern", "vm/drop_caches", "net/ipv4/ip_forward"]
    triggers = [name for name in ("/proc/sysrq-trigger",) if Path(name).exists()]
    for path in [*(f"/proc/sys/{name}" for name in settings), *triggers]:
        finished = await runtime.exec(sh(f": >>{path}"))
        assert finished.exit_code != 0, path
        assert "cannot create" in finished.stderr_tail


async def test_what_only_root_reads_in_proc_is_closed(runtime: BubblewrapRuntime) -> None:
    closed = [p for p in Path("/proc").iterdir() if p.is_file() and not p.stat().st_mode & 0o004]
    assert closed
    for path in closed:
        assert (await runtime.exec(sh(f"cat {path}"))).stdout_tail == ""


async def test_there_is_no_power_to_be_had(runtime: BubblewrapRuntime) -> None:
    await runtime.exec(sh("cp /bin/sh su; chmod 6755 su"))
    finished = await runtime.exec(sh("./su -c 'cat /proc/self/status'; grep ' /work ' /proc/self/mounts"))
    status = dict(line.split(":\t", 1) for line in finished.stdout_tail.splitlines() if ":\t" in line)
    assert status["CapEff"] == status["CapPrm"] == status["CapBnd"] == "0000000000000000"
    assert status["NoNewPrivs"] == "1"
    assert "nosuid" in finished.stdout_tail

    for attempt in ("unshare --user true", "unshare --mount true", "mount -t tmpfs x /tmp", "chroot / true"):
        assert (await runtime.exec(sh(attempt))).exit_code != 0, attempt
    assert (await runtime.exec(sh("mknod disk b 8 0"))).exit_code != 0


KEYS = """
import ctypes, platform
calls = {"x86_64": (248, 250), "aarch64": (217, 219)}
add, control = calls[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
mine, join, search = -3, 1, 10
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="calls have other numbers here")
def test_the_nodes_keys_are_not_there(tmp_path: Path) -> None:
    """Keyrings are inherited, so this starts a node with a keyring of its own."""
    node = tmp_path / "node.py"
    node.write_text(
        KEYS
        + f"""
import asyncio, sys
from pathlib import Path
from polar.runtimes.base import Command, SessionFolders
from polar.runtimes.bubblewrap.runtime import BubblewrapOptions, BubblewrapRuntime

TRY = {KEYS!r} + "print(libc.syscall(control, search, mine, b'user', b'polar', 0), end=' ')"
TRY += "; print(libc.syscall(add, b'user', b'more', b'x', 1, mine))"

async def main(folder):
    runtime = BubblewrapRuntime(BubblewrapOptions())
    await runtime.start(SessionFolders("s-1", folder / "root", folder / "logs"))
    print((await runtime.exec(Command(("python3", "-c", TRY)))).stdout_tail)
    print((await runtime.exec(Command(("cat", "/proc/keys", "/proc/key-users")))).stdout_tail)
    await runtime.stop()

libc.syscall(control, join, None)
assert libc.syscall(add, b"user", b"polar", b"secret", 6, mine) > 0 or ctypes.get_errno() == 38
asyncio.run(main(Path(sys.argv[1])))
"""
    )
    ran = subprocess.run([sys.executable, node, tmp_path / "place"], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["-1", "-1"], ran.stderr


# Processes


async def test_other_processes_are_neither_seen_nor_signalled(
    sessions: Sessions, runtime: BubblewrapRuntime
) -> None:
    other = await sessions.start(sessions.folders("s-2"))
    task = await begin(other, "touch ready; sleep 1000")
    finished = await runtime.exec(sh("ls /proc | grep '^[0-9]'; cat /proc/[0-9]*/cmdline | tr '\\0' ' '"))
    assert len(finished.stdout_tail.split("\n")) < 10
    assert "sleep 1000" not in finished.stdout_tail
    assert (await runtime.exec(sh(f"kill -0 {os.getpid()}"))).exit_code != 0

    await runtime.exec(sh("kill -KILL -1"))
    assert not task.done()
    assert await other.get("ready") == b""
    await other.kill()
    await task


# The network


@pytest.mark.parametrize("network_mode", ["gateway_only", "none"])
async def test_the_nodes_servers_cannot_be_reached(sessions: Sessions, network_mode: str) -> None:
    runtime = await sessions.start(network=network_mode)
    listener = await runtime.listener()
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
            for target in ("127.0.0.1", "0.0.0.0", "localhost", own_address()):
                finished = await runtime.exec(bash(f": </dev/tcp/{target}/{port}"))
                assert finished.exit_code != 0, target
    if listener is not None:
        listener.close()


def own_address() -> str:
    """The node's outside address; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return any_socket.getsockname()[0]


async def test_there_is_a_loopback_and_no_other_way_out(runtime: BubblewrapRuntime) -> None:
    finished = await runtime.exec(sh("cat /proc/net/dev; cat /proc/net/route"))
    assert [line.split(":")[0].strip() for line in finished.stdout_tail.splitlines() if ":" in line] == ["lo"]
    assert (await runtime.exec(bash(": >/dev/udp/192.0.2.1/53"))).exit_code != 0


async def test_the_nodes_nameless_sockets_are_not_there(runtime: BubblewrapRuntime) -> None:
    name = f"polar-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(f"\0{name}")
        assert name in Path("/proc/net/unix").read_text()
        assert (await runtime.exec(sh(f"grep {name} /proc/net/unix"))).exit_code == 1


async def test_a_listener_serves_its_own_session_only(sessions: Sessions) -> None:
    mine, other = await sessions.start(), await sessions.start(sessions.folders("s-2"))
    listener = await mine.listener()
    assert listener is not None
    with listener:
        knock = bash(f": </dev/tcp/127.0.0.1/{listener.getsockname()[1]}")
        assert (await mine.exec(knock)).exit_code == 0
        assert (await other.exec(knock)).exit_code != 0


def test_a_session_does_not_inherit_the_listener_of_another(tmp_path: Path) -> None:
    """On the event loop of nodes: uvloop leaves open in a child what is not marked."""

    async def descriptors_beside_a_listener() -> tuple[str, int]:
        sessions = Sessions(tmp_path)
        try:
            served, other = await sessions.start(), await sessions.start(sessions.folders("s-2"))
            listener = await served.listener()
            assert listener is not None
            with listener:
                seen = await other.exec(sh("ls -l /proc/self/fd"))
                return seen.stdout_tail, os.fstat(listener.fileno()).st_ino
        finally:
            await sessions.stop()

    seen, listener = run_apart(descriptors_beside_a_listener())
    assert "/proc/" in seen
    assert f"socket:[{listener}]" not in seen


# Limits


@needs_cgroups
async def test_a_fork_bomb_ends_at_the_limit(sessions: Sessions) -> None:
    bomber = await sessions.start(limits={"pids": 40})
    neighbour = await sessions.start(sessions.folders("s-2"))
    network = await network_of(bomber)
    bomb = "touch ready; bomb() { bomb | bomb & }; bomb; sleep 1000"
    task = await begin(bomber, bomb)
    for _ in range(5):
        assert (await neighbour.exec(sh("true"))).exit_code == 0
        assert len(alive_in(network)) <= 40 + 1  # the namespace holder does not count
    await bomber.kill()
    await task
    assert len(alive_in(network)) == 1
    assert (await bomber.exec(sh("echo again"))).stdout_tail == "again\n"


@needs_kernel(NO_CGROUPS if os.geteuid() == 0 else "")
async def test_without_a_limit_asked_for_there_is_one_nevertheless(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polar.runtimes.host.cgroups.DEFAULT_PIDS", 30)
    runtime = await sessions.start()
    many = "n=0; while [ $n -lt 50 ]; do sleep 1000 & n=$((n+1)); done; echo all"
    assert "all" not in (await runtime.exec(sh(many))).stdout_tail


@needs_cgroups
async def test_only_the_session_over_its_memory_limit_is_killed(sessions: Sessions) -> None:
    hog = await sessions.start(limits={"memory_bytes": "48MiB"})
    neighbour = await sessions.start(sessions.folders("s-2"), limits={"memory_bytes": "48MiB"})
    task = await begin(neighbour, "touch ready; sleep 1000")

    finished = await hog.exec(sh("head -c 300000000 /dev/zero | tail"))

    assert finished.exit_code in (137, -9)
    assert "memory limit" in finished.stderr_tail
    assert not task.done()
    assert (await hog.exec(sh("echo again"))).stdout_tail == "again\n"
    await neighbour.kill()
    assert "memory limit" not in (await task).stderr_tail


async def test_who_fills_the_disk_finds_it_full(sessions: Sessions) -> None:
    filler = await sessions.start(limits={"disk_bytes": "8MiB"})
    neighbour = await sessions.start(sessions.folders("s-2"), limits={"disk_bytes": "8MiB"})
    for path in ("/work/f", "/home/polar/f", "/tmp/f", "/dev/shm/f"):
        finished = await filler.exec(sh(f"head -c 20000000 /dev/zero >{path}; rm {path}"))
        assert "No space left" in finished.stderr_tail, path
    await filler.exec(sh("head -c 5000000 /dev/zero >/work/f; head -c 5000000 /dev/zero >/tmp/f"))
    with pytest.raises(WorkspaceUnusable, match="has filled its disk"):
        await filler.put("more", bytes(1_000_000))
    await neighbour.put("mine", bytes(1_000_000))


async def test_who_makes_files_without_end_finds_it_full(sessions: Sessions) -> None:
    filler = await sessions.start(limits={"disk_bytes": "1MiB"})
    finished = await filler.exec(sh("i=0; while [ $i -lt 3000 ] && : >f$i; do i=$((i+1)); done; echo $i"))
    assert "No space left" in finished.stderr_tail


async def test_limits_that_cannot_be_held_fail_the_start(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Hierarchy.__init__, "__defaults__", (tmp_path, tmp_path))
    with pytest.raises(RuntimeFailure, match="run the node as root"):
        await sessions.start(limits={"memory_bytes": "1GiB"})
    runtime = await sessions.start(limits={"disk_bytes": "8MiB"})
    assert (await runtime.exec(sh("true"))).exit_code == 0


@needs_cgroups
async def test_many_sessions_at_once(sessions: Sessions) -> None:
    made = await asyncio.gather(*(sessions.start(sessions.folders(f"s-{n}")) for n in range(12)))
    networks = await asyncio.gather(*map(network_of, made))
    assert len(set(networks)) == 12
    await asyncio.gather(*(runtime.stop() for runtime in made))
    assert not any(map(alive_in, networks))
