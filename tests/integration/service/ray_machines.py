"""A Ray cluster of several raylets on this machine, each a process tree with a loopback address of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ports import port_to_come_back_to
from service_bench import POLAR, ServiceBench
from waiting import HANG_S, blocked_until

START = (sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block")
SAME = (
    f"--object-store-memory={80 * 2**20}",
    "--disable-usage-stats",
    *("--min-worker-port=0", "--max-worker-port=0"),  # any free ones: its own range may hold our ports
)


class RayMachines:
    def __init__(self, bench: ServiceBench) -> None:
        self.bench = bench
        self.machines: list[subprocess.Popen[bytes]] = []
        self.address = ""
        self._temp = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
        """Short: Ray has unix sockets in it."""

    def start_head(self) -> None:
        """With no CPU and no resource: it gets no gateway nodes."""
        port, client_port = port_to_come_back_to(), port_to_come_back_to()
        self._start(
            "127.0.0.2",
            *("--head", f"--port={port}", "--num-cpus=0", f"--temp-dir={self._temp}", "--include-dashboard=false"),
            f"--ray-client-server-port={client_port}",
        )
        self.address = f"127.0.0.2:{port}"
        blocked_until(lambda: "Ray runtime started" in self._log().read_text())

    def start_machine(self) -> subprocess.Popen[bytes]:
        """With a CPU and the resource `polar`. Returns when it has joined: Ray gives a raylet 30 s for that, so
        they start one after the other, and once more where the machine is too busy."""
        host = f"127.0.0.{len(self.machines) + 2}"
        while not (machine := self._joined(host)):
            self.machines.pop()
        return machine

    def _joined(self, host: str) -> subprocess.Popen[bytes] | None:
        machine = self._start(host, f"--address={self.address}", "--num-cpus=1", '--resources={"polar": 1}')
        log = self._log()
        blocked_until(lambda: "Ray runtime started" in log.read_text() or machine.poll() is not None)
        assert machine.poll() is None or "timed out during startup" in log.read_text(), log.read_text()
        return machine if machine.poll() is None else None

    def _start(self, host: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log(new=True).open("wb") as log:
            command = [*START, f"--node-ip-address={host}", *SAME, *arguments]
            # In a session of its own, so that `close` ends it with all that it has started.
            process = subprocess.Popen(
                command,
                cwd=self.bench.folder,
                env=self.bench.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.machines.append(process)
        return process

    def _log(self, *, new: bool = False) -> Path:
        return self.bench.folder / f"ray-{len(self.machines) + new}.log"

    def polar(self, *arguments: str) -> str:
        """Output of `polar cluster ray ...`."""
        done = subprocess.run(
            [*POLAR, "cluster", "ray", *arguments, "--address", self.address],
            cwd=self.bench.folder,
            env=self.bench.env,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def working(self) -> list[dict[str, Any]]:
        """Machines whose actor answers."""
        machines = json.loads(self.polar("status", "--json"))["machines"]
        return [machine for machine in machines if machine["status"]]

    def actor_of(self, machine: subprocess.Popen[bytes]) -> int:
        return blocked_until(lambda: _child(_child(machine.pid, "raylet"), "ray::MachineActor"))

    def node_of(self, machine: subprocess.Popen[bytes]) -> int:
        return blocked_until(lambda: _child(self.actor_of(machine), " gateway "))

    def kill_raylet(self, machine: subprocess.Popen[bytes]) -> None:
        raylet = _child(machine.pid, "raylet")
        assert raylet
        os.kill(raylet, signal.SIGKILL)

    def close(self) -> None:
        for machine in self.machines:
            for pid in _tree(machine.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            machine.wait()
        shutil.rmtree(self._temp, ignore_errors=True)


def _children(pid: int | None) -> list[tuple[int, str]]:
    """Living ones, with their command lines."""
    found: list[tuple[int, str]] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
                if int(parent) == pid and state not in "ZX":
                    found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
            except OSError:
                continue
    return found


def _child(pid: int | None, part: str) -> int | None:
    return next((child for child, command in _children(pid) if part in command), None) if pid else None


def _tree(pid: int) -> list[int]:
    return [pid, *(each for child, _ in _children(pid) for each in _tree(child))]
