"""What a container prevents: files, processes, networks and limits, tried from inside."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest
from docker_machine import StartDocker, container_of, processes_in, sh

from polar.errors import RuntimeFailure
from polar.runtimes.docker.api import connected
from polar.runtimes.docker.archive import Owner, pack
from polar.runtimes.docker.container import Container
from polar.runtimes.docker.runtime import DockerRuntime

pytestmark = pytest.mark.check

HOG = "x=$(seq 100000000)"


@pytest.fixture
async def service() -> AsyncIterator[int]:
    """A server of the node on every address that answers with a secret; returns its port."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"secret\n")
        writer.close()

    server = await asyncio.start_server(answer, "0.0.0.0", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def addresses() -> list[str]:
    """Addresses of the machine: loopback, bridges and network cards."""
    told = subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    return [word.split("/")[0] for line in told.splitlines() for word in line.split()[3:4]]


async def heard(runtime: DockerRuntime, address: str, port: int) -> str:
    finished = await runtime.exec(
        sh(f"bash -c 'exec 3<>/dev/tcp/{address}/{port} && head -n 1 <&3' 2>&1 || echo unreachable")
    )
    return finished.stdout_tail.strip().splitlines()[-1]


@pytest.mark.parametrize("network", ["gateway_only", "none"])
async def test_nothing_of_the_nodes_network_is_reached(
    start_docker: StartDocker, service: int, network: str
) -> None:
    runtime = await start_docker(network=network)
    reached = {address: await heard(runtime, address, service) for address in addresses()}
    assert "127.0.0.1" in reached
    assert set(reached.values()) == {"unreachable"}


async def test_an_open_network_reaches_the_nodes_addresses_and_not_its_loopback(
    start_docker: StartDocker, service: int
) -> None:
    runtime = await start_docker(network="open")
    async with connected() as api:
        told = await api.call("GET", f"/containers/{await container_of(runtime)}/json")
    assert await heard(runtime, told["NetworkSettings"]["Gateway"], service) == "secret"
    assert await heard(runtime, "127.0.0.1", service) == "unreachable"


@pytest.mark.parametrize("network", ["gateway_only", "open"])
async def test_the_listener_is_on_the_sessions_own_loopback(start_docker: StartDocker, network: str) -> None:
    first, second = await start_docker(network=network), await start_docker(network=network)
    listener = await first.listener()
    assert listener is not None
    port = listener.getsockname()[1]

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"model\n")
        writer.close()

    async with await asyncio.start_server(answer, sock=listener):
        assert await heard(first, "127.0.0.1", port) == "model"
        assert await heard(second, "127.0.0.1", port) == "unreachable"
        with socket.socket() as outside:
            outside.setblocking(False)
            with pytest.raises(OSError):
                await asyncio.get_running_loop().sock_connect(outside, ("127.0.0.1", port))


async def test_without_a_network_there_is_no_listener(start_docker: StartDocker) -> None:
    assert await (await start_docker(network="none")).listener() is None


async def test_a_killed_runtime_can_open_a_listener_again(start_docker: StartDocker) -> None:
    runtime = await start_docker()
    await runtime.kill()
    listener = await runtime.listener()
    assert listener is not None
    listener.close()


async def test_files_of_the_node_and_of_other_sessions_are_not_seen(
    start_docker: StartDocker, tmp_path: Path
) -> None:
    first, second = await start_docker(), await start_docker()
    (tmp_path / "node-secret").write_text("secret")
    await first.put("answer.txt", b"secret")
    await first.put("key", b"secret", home=True)
    script = f"cat {tmp_path}/node-secret /work/answer.txt ~/key /proc/1/root/work/answer.txt; ls /var/run /opt"
    assert "secret" not in (await second.exec(sh(script))).stdout_tail


async def test_what_is_written_outside_the_workspace_stays_in_the_session(start_docker: StartDocker) -> None:
    first, second = await start_docker(), await start_docker()
    assert (await first.exec(sh("echo x >/etc/passwd; rm -rf /testbed/src; ls /testbed/src"))).exit_code != 0
    assert (await second.exec(sh("id -un; ls /testbed"))).stdout_tail == "root\nsrc\n"


@pytest.mark.parametrize("is_killed", [False, True])
async def test_the_engine_follows_no_link_to_the_node(
    start_docker: StartDocker, tmp_path: Path, is_killed: bool
) -> None:
    """An agent may create a link between the node's check of a path and its write."""
    runtime, target = await start_docker(), tmp_path / "target"
    target.mkdir()
    await runtime.exec(sh(f"ln -s {target} link; ln -s ../../../../..{target} up; ln -s {target}/file file"))
    container_id = await container_of(runtime)
    if is_killed:
        await runtime.kill()
    async with connected() as api:
        for folder, name in (("/work/link", "x"), ("/work/up", "x"), ("/work", "link/x"), ("/work", "file")):
            packed = pack(PurePosixPath(name), 0o644, Owner(0, 0), b"x")
            with suppress(RuntimeFailure):
                await Container(api, container_id).put(PurePosixPath(folder), packed)
    assert list(target.iterdir()) == []


async def test_processes_of_others_are_neither_seen_nor_signalled(start_docker: StartDocker) -> None:
    first, second = await start_docker(), await start_docker()
    await first.exec(sh("sleep 1000 >/dev/null 2>&1 &"))
    seen = (await second.exec(sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '"))).stdout_tail
    await second.exec(sh("kill -9 -1"))
    assert "sleep 1000" not in seen
    assert any("sleep" in words for words in processes_in(await container_of(first)))


async def test_root_inside_has_no_powers(start_docker: StartDocker) -> None:
    runtime = await start_docker()
    status = (await runtime.exec(sh("cat /proc/self/status"))).stdout_tail
    assert "CapEff:\t0000000000000000" in status
    assert "CapBnd:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status


async def test_a_power_can_be_left(start_docker: StartDocker) -> None:
    runtime = await start_docker(cap_add=["CHOWN"])
    assert "CapEff:\t0000000000000001" in (await runtime.exec(sh("cat /proc/self/status"))).stdout_tail


async def test_a_fork_bomb_is_held_and_the_neighbour_goes_on(start_docker: StartDocker) -> None:
    bomber, neighbour = await start_docker(limits={"pids": 64}), await start_docker()
    bombed = asyncio.create_task(bomber.exec(sh("while :; do sleep 1000 >/dev/null 2>&1 & done")))
    container = await container_of(neighbour)
    assert (await neighbour.exec(sh("for i in $(seq 100); do true & done; wait"))).exit_code == 0
    assert "fork" in (await bombed).stderr_tail
    assert processes_in(container) == []
    await bomber.kill()
    assert (await bomber.exec(sh("echo alive"))).stdout_tail == "alive\n"


async def test_a_memory_hog_is_killed_and_the_neighbour_goes_on(start_docker: StartDocker) -> None:
    hog, neighbour = await start_docker(limits={"memory_bytes": "40MiB"}), await start_docker()
    finished = await hog.exec(sh(HOG))
    assert finished.exit_code == 137
    assert "over its memory limit" in finished.stderr_tail
    assert (await hog.exec(sh("echo alive"))).stdout_tail == "alive\n"
    assert (await neighbour.exec(sh("x=$(seq 3000000); echo ${#x}"))).stdout_tail == "22888895\n"


async def test_another_kill_is_not_told_as_one_for_memory(start_docker: StartDocker) -> None:
    runtime = await start_docker(limits={"memory_bytes": "40MiB"})
    await runtime.exec(sh(HOG))
    finished = await runtime.exec(sh("kill -9 $$"))
    assert finished.exit_code == 137
    assert finished.stderr_tail == ""


async def test_limits_reach_the_engine(start_docker: StartDocker) -> None:
    limited = await start_docker(limits={"cpus": 0.5, "memory_bytes": "64MiB", "pids": 100})
    free = await start_docker()
    async with connected() as api:
        told, untold = [
            (await api.call("GET", f"/containers/{await container_of(runtime)}/json"))["HostConfig"]
            for runtime in (limited, free)
        ]
    assert (told["NanoCpus"], told["Memory"], told["MemorySwap"], told["PidsLimit"]) == (5e8, 2**26, 2**26, 100)
    assert (untold["NanoCpus"], untold["Memory"], untold["PidsLimit"]) == (0, 0, 4096)
