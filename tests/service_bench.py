"""A rollout service of real processes in a folder of its own, and what a test does to them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from polar.client import PolarClient
from polar.types import TaskRequest
from ports import port_to_come_back_to
from waiting import HANG_S, until

HERE = Path(__file__).parent
AGENT = f"{sys.executable} {HERE / 'integration' / 'session' / 'tiny_agent.py'}"
CHECK = {"name": "test_on_output", "options": {"command": "cat answer.txt", "expect_pattern": "^hello$"}}
POLAR = (sys.executable, "-P", "-c", "from polar.cli.app import main; main()")
CONFIG = """
[engine]
name = "service_engine:ServiceEngine"
[pools]
init = 2
ready = 2
running = 3
[server]
port = 0
heartbeat_s = 0.3
lease_beats = 10
"""


def agent_task(command: str = AGENT, **fields: Any) -> TaskRequest:
    harness = {"name": "shell", "options": {"command": command}}
    return TaskRequest.model_validate(
        {"instruction": "Write hello.", "harness": harness, "evaluator": CHECK, **fields}
    )


class ServiceBench:
    """Processes are ended by `close` whatever the test did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.address = ""
        self._port = port_to_come_back_to()
        (folder / "polar.toml").write_text(CONFIG)
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "POLAR_CONFIG_DIR": str(folder / "secrets"),
            "COLUMNS": "200",
        }

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self.start_program(arguments[0], *POLAR, *arguments)

    def start_program(self, name: str, *argv: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{len(self.processes)}-{name}.log").open("wb") as log:
            process = subprocess.Popen(
                argv,
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    async def start_server(self, *more: str) -> subprocess.Popen[bytes]:
        """Started again, it is where it was."""
        noted = self.folder / "address"
        noted.unlink(missing_ok=True)
        process = self.start("server", "--port", str(self._port), "--address-file", str(noted), *more)
        await until(noted.exists)
        self.address = noted.read_text()
        return process

    def start_node(self, *more: str) -> subprocess.Popen[bytes]:
        return self.start("gateway", "--server", self.address, *more)

    def has_registered(self, node: subprocess.Popen[bytes]) -> bool:
        """One that has not may still be loading its modules: a signal would end it as any Python."""
        return "registered at" in (self.folder / f"{self.processes.index(node)}-gateway.log").read_text()

    def client(self) -> PolarClient:
        return PolarClient(self.address, (self.folder / "secrets" / "control-token").read_text())

    def left_running(self) -> list[str]:
        """Commands of all living processes that a session of this folder has started."""
        marker = f"POLAR_PLACE={self.folder}".encode()
        return [name for name, environment in _living() if b"\0" + marker in environment]

    def ours(self) -> list[str]:
        """Commands of all living processes of this service."""
        marker = f"POLAR_CONFIG_DIR={self.folder / 'secrets'}".encode()
        return [name for name, environment in _living() if b"\0" + marker in environment]

    def logs(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text()}" for p in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def _living() -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                alive = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if alive:
                    found.append((command, b"\0" + (entry / "environ").read_bytes()))
            except OSError:
                continue
    return found


async def stopped(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> int:
    """Its exit code."""
    process.send_signal(how)
    return await asyncio.to_thread(process.wait, HANG_S)
