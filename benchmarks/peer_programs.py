"""The programs beside Polar in `peers.py`: their environments, how each is started, and what is left of each.

Environments lie in Polar's cache, made once by pip from pinned versions. Every program runs as it is installed,
by its own command, with its log thrown away.
"""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import orjson
from gateway_targets import GatewayTarget, RelayTarget
from raw_http import RawConnection
from target_process import Process, own_core

from polar import __version__
from polar.config import cache_dir

OPENENV, RLLM = "openenv==0.10.0", "rllm-model-gateway==0.1.0"
FASTER = ("uvloop==0.23.0", "httptools==0.9.0")
"""uvicorn takes them where it finds them; openenv does not bring them along."""
START_LIMIT_S = 120.0


class Peer(Protocol):
    name: str
    version: str
    pid: int

    def open(self, session_ids: list[str]) -> list[RawConnection]:
        """New sessions, each with a connection of its own."""
        ...

    def rows_on_disk(self) -> int:
        """Calls that a later start would find."""
        ...

    def bytes_on_disk(self) -> int: ...

    def stop(self) -> None: ...


def environment(requirement: str) -> Path:
    """The Python of the environment that holds a pinned package."""
    folder = cache_dir() / "peers" / requirement.replace("==", "-")
    done = folder / ".complete"
    if not done.exists():
        print(f"making an environment for {requirement}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([*_pip(folder), "install", requirement], check=True)
        done.touch()
    return folder / "bin" / "python"


def faster_loop(python: Path) -> Path:
    """A folder with uvloop and httptools for that Python."""
    folder = python.parent.parent / "faster"
    if not folder.exists():
        subprocess.run([*_pip(python.parent.parent), "install", "--target", folder, *FASTER], check=True)
    return folder


def _pip(folder: Path) -> list[str]:
    return [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]


class OwnProcess:
    """Ours: what runs in a `Process`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.pid = process.pid

    def open(self, session_ids: list[str]) -> list[RawConnection]:
        keys = self.process.ask("open", session_ids)
        return [RawConnection(self.process.url, key=key) for key in keys]

    def rows_on_disk(self) -> int:
        return 0

    def bytes_on_disk(self) -> int:
        return 0

    def stop(self) -> None:
        self.process.stop()


class PolarPeer(OwnProcess):
    name, version = "Polar", __version__

    def __init__(self, folder: Path, engine_url: str) -> None:
        self._folder = folder
        super().__init__(Process(GatewayTarget, folder, engine_url, cores=own_core()))

    def rows_on_disk(self) -> int:
        return _count(self._folder / "journal.db", "calls")

    def bytes_on_disk(self) -> int:
        return _database_bytes(self._folder / "journal.db")


class RelayPeer(OwnProcess):
    name, version = "relay", "aiohttp"

    def __init__(self, folder: Path, engine_url: str) -> None:
        super().__init__(Process(RelayTarget, engine_url, cores=own_core()))


class Program:
    """Theirs: a server of its own environment, on the measured core."""

    def __init__(self, command: list[str], port: int, env: dict[str, str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid
        os.sched_setaffinity(self.pid, own_core())  # before it has other threads, which inherit it
        self._wait()

    def _wait(self) -> None:
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit and self._process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return
            time.sleep(0.1)
        self.stop()
        raise SystemExit(f"{self._process.args} did not start")

    def post(self, path: str, data: Any) -> Any:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", orjson.dumps(data), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return orjson.loads(answer.read())

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as answer:
            return orjson.loads(answer.read())

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()


class OpenEnvPeer(Program):
    """The standalone capture proxy. A session's id is its key; all it captures is in memory."""

    name, version = "OpenEnv", OPENENV.partition("==")[2]

    def __init__(self, folder: Path, engine_url: str, *, faster: bool = False) -> None:
        python, port = environment(OPENENV), free_port()
        command = [
            *(str(python), "-m", "openenv.core.harness.capture.server", "--llm-url", engine_url),
            *("--model", "polar", "--capture-level", "tokens", "--engine", "vllm", "--port", str(port)),
        ]
        super().__init__(command, port, {"PYTHONPATH": str(faster_loop(python)) if faster else ""})

    def open(self, session_ids: list[str]) -> list[RawConnection]:
        keys = [self.post("/sessions", {"session_id": id})["session_id"] for id in session_ids]
        return [RawConnection(self.url, key=key) for key in keys]

    def rows_on_disk(self) -> int:
        return 0

    def bytes_on_disk(self) -> int:
        return 0


class FasterOpenEnvPeer(OpenEnvPeer):
    name = "OpenEnv with uvloop"

    def __init__(self, folder: Path, engine_url: str) -> None:
        super().__init__(folder, engine_url, faster=True)


class RllmPeer(Program):
    """A session has a path of its own; traces go to SQLite by a task after the reply."""

    name, version = "rLLM gateway", RLLM.partition("==")[2]

    def __init__(self, folder: Path, engine_url: str) -> None:
        self._folder = folder
        port = free_port()
        command = [
            *(str(environment(RLLM)), "-m", "rllm_model_gateway", "--host", "127.0.0.1", "--port", str(port)),
            *("--worker", f"{engine_url}/v1", "--store", "sqlite", "--db-path", str(folder / "traces.db")),
        ]
        super().__init__(command, port, {})

    def open(self, session_ids: list[str]) -> list[RawConnection]:
        urls = [self.post("/sessions", {"session_id": id})["url"] for id in session_ids]
        return [RawConnection(self.url, path=f"{url}/chat/completions") for url in urls]

    def rows_on_disk(self) -> int:
        return _count(self._folder / "traces.db", "traces")

    def bytes_on_disk(self) -> int:
        return _database_bytes(self._folder / "traces.db")


PEERS: tuple[Any, ...] = (PolarPeer, OpenEnvPeer, FasterOpenEnvPeer, RllmPeer, RelayPeer)


def cpu_us(pid: int) -> float:
    """Of all threads that live, to the nanosecond, which the usual clock ticks of /proc are too coarse for."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            total += int(path.read_text().split()[0])
    return total / 1000


def rss_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _count(path: Path, name: str) -> int:
    if not path.exists():  # some make it with the first row
        return 0
    connection = sqlite3.connect(path)
    try:
        return connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
    finally:
        connection.close()


def _database_bytes(path: Path) -> int:
    """Of the file without its write-ahead log, whose rows are moved into it first."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        return pages * size
    finally:
        connection.close()
