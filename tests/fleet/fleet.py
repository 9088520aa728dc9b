"""A fleet of real processes on one PostgreSQL: two rollout servers behind one address, three gateway nodes, two
replicas of the engine; and what may happen to them."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import ClientError, ClientSession

from fleet.balancer import Balancer
from ports import port_to_come_back_to
from service_bench import ServiceBench, stopped
from waiting import until

SERVERS, NODES, REPLICAS = 2, 3, 2
FROZEN_S = 4.0
"""Longer than a lease: a node that stands still so long has lost its sessions when it goes on."""
CONFIG = """
[engine]
name = "pool"
[engine.options]
engine = "vllm"
urls = {urls}
check_s = 0.5
[pools]
init = 2
ready = 2
running = 3
[node]
max_failures = 1000
max_hand_backs = 1000
probe_pause_s = 0.2
[server]
database = "{database}"
port = 0
heartbeat_s = 0.3
lease_beats = 10
max_attempts = 1000
"""

Fault = Callable[[int], Awaitable[None]]
"""What happens to the process with this number."""


class Fleet(ServiceBench):
    def __init__(self, folder: Path, database: str) -> None:
        super().__init__(folder)
        self._server_ports = [port_to_come_back_to() for _ in range(SERVERS)]
        self._replica_ports = [port_to_come_back_to() for _ in range(REPLICAS)]
        urls = [f"http://127.0.0.1:{port}" for port in self._replica_ports]
        (folder / "polar.toml").write_text(CONFIG.format(urls=urls, database=database))
        self.balancer = Balancer(self._server_ports)
        self.servers: list[subprocess.Popen[bytes]] = []
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.replicas: list[subprocess.Popen[bytes]] = []
        self.happened: list[str] = []

    async def __aenter__(self) -> Fleet:
        await self.balancer.__aenter__()
        self.address = self.balancer.url
        self.replicas = [self._replica(number) for number in range(REPLICAS)]
        for number in range(SERVERS):  # one after the other: the first makes the tables
            self.servers.append(await self._server(number))
        await asyncio.gather(*(self._replica_answers(number) for number in range(REPLICAS)))
        self.nodes = [self.start_node() for _ in range(NODES)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self.balancer.__aexit__()

    async def stop(self) -> list[int]:
        """Exit codes of nodes and servers, which end as an operator ends them."""
        await until(lambda: all(map(self.has_registered, self.nodes)))
        return [await stopped(process) for process in (*self.nodes, *self.servers)]

    def faults(self, count: int, seed: int) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """All kinds about as often, in a random order."""
        kinds: list[tuple[str, Fault, int]] = [
            ("server killed", self._kill_server, SERVERS),
            ("server stopped", self._stop_server, SERVERS),
            ("node killed", self._kill_node, NODES),
            ("node stopped", self._stop_node, NODES),
            ("node frozen", self._freeze_node, NODES),
            ("replica killed", self._kill_replica, REPLICAS),
            ("replica frozen", self._freeze_replica, REPLICAS),
            ("connections cut", self._cut, 1),
        ]
        chance = random.Random(seed)
        chosen = [kinds[number % len(kinds)] for number in range(count)]
        chance.shuffle(chosen)
        return [self._on(name, fault, chance.randrange(among)) for name, fault, among in chosen]

    def _on(self, name: str, fault: Fault, number: int) -> tuple[str, Callable[[], Awaitable[None]]]:
        async def happen() -> None:
            self.happened.append(f"{name}: {number}")
            await fault(number)

        return name, happen

    async def _kill_server(self, number: int) -> None:
        await stopped(self.servers[number], signal.SIGKILL)
        self.servers[number] = await self._server(number)

    async def _stop_server(self, number: int) -> None:
        assert await stopped(self.servers[number]) == 0, self.logs()
        self.servers[number] = await self._server(number)

    async def _kill_node(self, number: int) -> None:
        await stopped(self.nodes[number], signal.SIGKILL)
        self.nodes[number] = self.start_node()

    async def _stop_node(self, number: int) -> None:
        await until(lambda: self.has_registered(self.nodes[number]))
        assert await stopped(self.nodes[number]) == 0, self.logs()
        self.nodes[number] = self.start_node()

    async def _freeze_node(self, number: int) -> None:
        await _frozen(self.nodes[number])

    async def _kill_replica(self, number: int) -> None:
        await stopped(self.replicas[number], signal.SIGKILL)
        self.replicas[number] = self._replica(number)

    async def _freeze_replica(self, number: int) -> None:
        await _frozen(self.replicas[number])

    async def _cut(self, _: int) -> None:
        await self.balancer.cut()

    async def _server(self, number: int) -> subprocess.Popen[bytes]:
        noted = self.folder / f"address-{number}"
        noted.unlink(missing_ok=True)
        process = self.start("server", "--port", str(self._server_ports[number]), "--address-file", str(noted))
        await until(noted.exists)
        return process

    def _replica(self, number: int) -> subprocess.Popen[bytes]:
        program = Path(__file__).with_name("replica_main.py")
        return self.start_program("replica", sys.executable, str(program), str(self._replica_ports[number]))

    async def _replica_answers(self, number: int) -> None:
        async def answers() -> bool:
            try:
                async with ClientSession() as asking:
                    async with asking.get(f"http://127.0.0.1:{self._replica_ports[number]}/version") as reply:
                        return reply.status == 200
            except ClientError:
                return False

        await until(answers, pause_s=0.1)


async def _frozen(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(FROZEN_S)
    process.send_signal(signal.SIGCONT)
