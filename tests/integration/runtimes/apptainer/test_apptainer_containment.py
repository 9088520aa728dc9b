"""The apptainer runtime enforces what it declares: the session cannot reach the node's files, processes and
network."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from apptainer_bench import running, sh

from polar.errors import RuntimeFailure
from polar.runtimes.apptainer.runtime import ApptainerOptions, ApptainerRuntime
from polar.runtimes.base import Command, SessionFolders
from polar.runtimes.host.cgroups import Hierarchy
from polar.runtimes.options import Limits, Network
from skips import kernel_cannot
from waiting import hang_limit, until

pytestmark = pytest.mark.check

MIB = 2**20


@asynccontextmanager
async def started(image: Path, folder: Path, **chosen: object) -> AsyncIterator[ApptainerRuntime]:
    runtime = ApptainerRuntime(ApptainerOptions.model_validate({"image": str(image), **chosen}))
    try:
        await runtime.start(SessionFolders(f"c{os.getpid()}-{folder.name}", folder / "root", folder / "logs"))
        yield runtime
    finally:
        await runtime.stop()


@pytest.fixture
def server() -> Iterator[int]:
    """A server that listens on all addresses of the node; returns its port."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        listener.settimeout(0.1)
        over = threading.Event()

        def greet() -> None:
            while not over.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.sendall(b"the node's\n")

        thread = threading.Thread(target=greet)
        thread.start()
        yield listener.getsockname()[1]
        over.set()
        thread.join()


def nodes_addresses() -> list[str]:
    """Loopback, the address that anything bound to all addresses answers at, and what the node calls itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            own = [probe.getsockname()[0]]
        except OSError:  # the node has no network itself
            own = []
    return ["127.0.0.1", "0.0.0.0", *own]


def reach(address: str, port: int) -> Command:
    return Command(argv=("bash", "-c", f"exec 3<>/dev/tcp/{address}/{port} && cat <&3"))


# Files


async def test_files_of_the_node_and_of_other_sessions_are_not_there(image: Path, tmp_path: Path) -> None:
    secret = tmp_path / "node-secret"
    secret.write_text("of the node")
    async with started(image, tmp_path / "a") as one, started(image, tmp_path / "b") as other:
        await other.put("theirs.txt", b"of the other session")
        script = f"cat {secret} {tmp_path}/b/root/work/theirs.txt; find / -name node-secret -o -name theirs.txt"
        finished = await one.exec(sh(script + " 2>/dev/null"))
        assert finished.stdout_tail == ""
        assert await other.get("theirs.txt") == b"of the other session"


async def test_nothing_is_written_outside_the_session(
    runtime: ApptainerRuntime, tmp_path: Path, image: Path
) -> None:
    target = tmp_path / "target"
    target.write_text("as it was")
    before = sorted(path.name for path in image.rglob("*"))
    script = (
        f"mkdir -p {tmp_path}; echo changed >{target}; echo x >/bin/new; echo x >/etc/localtime; echo x >/new; :"
    )
    assert (await runtime.exec(sh(script))).exit_code == 0
    assert target.read_text() == "as it was"
    assert sorted(path.name for path in image.rglob("*")) == before


async def test_the_nodes_settings_cannot_be_changed(runtime: ApptainerRuntime) -> None:
    """Even if the node is root. Writes the same values back, in case it succeeds after all."""
    script = (
        "for f in /proc/sys/kernel/panic /proc/sys/vm/swappiness; do v=$(cat $f) && echo $v >$f; done; ls /sys"
    )
    finished = await runtime.exec(sh(script))
    assert finished.stdout_tail == ""
    assert finished.stderr_tail.count("Read-only file system") == 2

    writable = (
        "find /proc -path '/proc/[0-9]*' -prune -o -path '/proc/*self*' -prune -o ! -type d -writable -print"
    )
    assert (await runtime.exec(sh(writable))).stdout_tail == ""


async def test_there_are_no_capabilities_and_none_to_gain(runtime: ApptainerRuntime) -> None:
    finished = await runtime.exec(sh("cat /proc/self/status; find /dev -type b"))
    seen = dict(line.split(":\t", 1) for line in finished.stdout_tail.splitlines() if ":\t" in line)
    assert {int(seen[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert seen["NoNewPrivs"] == "1"
    assert "/dev/" not in finished.stdout_tail


# Processes


async def test_processes_of_the_node_are_neither_seen_nor_signalled(image: Path, tmp_path: Path) -> None:
    async with started(image, tmp_path / "a") as one, started(image, tmp_path / "b") as other:
        task = asyncio.create_task(other.exec(sh("sleep 54331")))
        await until(lambda: running("sleep 54331"))
        finished = await one.exec(
            sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; kill -0 $1".replace("$1", str(os.getpid())))
        )
        assert finished.exit_code != 0
        assert "sleep" not in finished.stdout_tail
        assert "pytest" not in finished.stdout_tail
        assert finished.stdout_tail.startswith("appinit")

        await one.exec(sh("kill -KILL -1"))
        await one.kill()
        assert running("sleep 54331")
        task.cancel()
        await asyncio.wait([task])


# Network


@pytest.mark.parametrize("network", ["gateway_only", "none"])
async def test_no_server_of_the_node_is_reached(
    image: Path, tmp_path: Path, server: int, network: Network
) -> None:
    async with started(image, tmp_path, network=network) as runtime:
        for address in nodes_addresses():
            finished = await runtime.exec(reach(address, server))
            assert finished.exit_code != 0
            assert finished.stdout_tail == ""
        devices = (await runtime.exec(sh("cat /proc/net/dev"))).stdout_tail
        assert [line.split(":")[0].strip() for line in devices.splitlines() if ":" in line] == ["lo"]


async def test_an_open_network_is_the_nodes_own(image: Path, tmp_path: Path, server: int) -> None:
    async with started(image, tmp_path, network="open") as runtime:
        assert await runtime.listener() is None
        assert (await runtime.exec(reach("127.0.0.1", server))).stdout_tail == "the node's\n"


async def test_the_gateway_is_reached_through_its_listener(image: Path, tmp_path: Path) -> None:
    async with started(image, tmp_path) as runtime:
        listener = await runtime.listener()
        assert listener is not None
        with listener:
            address, port = listener.getsockname()
            assert address == "127.0.0.1"
            call = asyncio.create_task(runtime.exec(reach(address, port)))
            async with hang_limit():
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            with connection:
                connection.sendall(b"hello\n")
            assert (await call).stdout_tail == "hello\n"


async def test_without_a_network_there_is_no_listener_and_loopback_is_up(image: Path, tmp_path: Path) -> None:
    async with started(image, tmp_path, network="none") as runtime:
        assert await runtime.listener() is None
        finished = await runtime.exec(reach("127.0.0.1", 9))
        assert "Connection refused" in finished.stderr_tail


# Limits


def limited(**limits: object) -> dict[str, object]:
    if lacking := Hierarchy().lacking(Limits.model_validate(limits)):
        kernel_cannot(lacking)
    return {"limits": limits}


async def test_who_takes_too_much_memory_is_killed_and_a_neighbour_is_not(image: Path, tmp_path: Path) -> None:
    limits = limited(memory_bytes="128MiB")
    async with (
        started(image, tmp_path / "a", **limits) as greedy,
        started(image, tmp_path / "b", **limits) as other,
    ):
        finished = await greedy.exec(Command(argv=("dd", "if=/dev/zero", "of=/dev/null", "bs=512M", "count=1")))
        assert finished.exit_code == -9
        assert (await other.exec(sh("echo fine"))).stdout_tail == "fine\n"
        assert (await greedy.exec(sh("echo again"))).stdout_tail == "again\n"


async def test_a_fork_bomb_stays_in_its_session(image: Path, tmp_path: Path) -> None:
    async with started(image, tmp_path / "a", **limited(pids=64)) as bomb, started(image, tmp_path / "b") as other:
        finished = await bomb.exec(sh("i=0; while [ $i -lt 200 ]; do sleep 54332 & i=$((i+1)); done; echo all"))
        assert finished.stdout_tail == ""
        assert "fork" in finished.stderr_tail
        assert len(running("sleep 54332")) < 64
        assert (await other.exec(sh("echo fine"))).stdout_tail == "fine\n"
        await bomb.kill()
        assert not running("sleep 54332")


async def test_a_limit_that_this_node_cannot_hold_fails_the_start_with_the_reason(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Hierarchy().lacking(Limits(memory_bytes=64 * MIB)):
        monkeypatch.setattr(Hierarchy, "_parent_by_controller", lambda _: {})
        monkeypatch.setattr(Hierarchy, "_single_parent", lambda *_: {})
    with pytest.raises(RuntimeFailure, match="cannot create a control group for memory here: run the node"):
        async with started(image, tmp_path, limits={"memory_bytes": 64 * MIB}):
            pass
    assert not (tmp_path / "root").exists()


async def test_system_calls_that_lead_out_are_closed(image: Path, tmp_path: Path) -> None:
    """A user namespace of its own would let a session mount the machine's control groups."""
    look = 'while read -r name value; do [ "$name" != Seccomp: ] || echo "$value"; done </proc/self/status'
    async with started(image, tmp_path) as runtime:
        told = await runtime.exec(sh(look))
        tried = await runtime.exec(Command(("unshare", "--user", "true")))
    assert told.stdout_tail == "2\n", "a filter is in force"
    assert tried.exit_code != 0 and "unshare failed" in tried.stderr_tail
