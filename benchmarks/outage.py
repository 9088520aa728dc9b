"""An engine outage over queued sessions: does any of them fail for it?

    python benchmarks/outage.py [--sessions 40] [--outage-s 120] [--write]

`polar up` with a server, a node and the `vllm` engine at a stub, behind a proxy that the script can shut. It is
shut when the engine was asked half as often as there are sessions: connections break, new ones are refused. After
the outage it opens again. Each session is a bash script that makes three model calls (`in_flight.py`). Prints the
stages of all sessions, and the attempts that the outage cost with their reasons.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from in_flight import REPLY, SCRIPT
from page import origin, table, write_section
from stub_server import Pace, StubEngine
from target_process import Process

POLAR = (sys.executable, "-P", "-c", "from polar.cli.app import main; main()")
REPLY_S = 0.3
CHUNK_BYTES = 2**16


class EngineProxy:
    """A loopback address in front of an engine."""

    def __init__(self, engine_url: str) -> None:
        host, _, port = engine_url.removeprefix("http://").partition(":")
        self._engine = (host, int(port))
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_connection(*self._engine)
        self._writers |= {writer, engine_writer}
        await asyncio.gather(self._copy(reader, engine_writer), self._copy(engine_reader, writer))
        self._writers -= {writer, engine_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                writer.write(data)
                await writer.drain()
        writer.close()


def lay_out(folder: Path, engine_url: str, sessions: int) -> None:
    pools_and_server = "[pools]\nrunning = 4\n[server]\nport = 0\n"
    (folder / "polar.toml").write_text(
        f'[engine]\nname = "vllm"\n[engine.options]\nurl = "{engine_url}"\n{pools_and_server}'
    )
    script = json.dumps(f"touch {shlex.quote(str(folder))}/begun-$POLAR_SESSION; {SCRIPT}")
    (folder / "tasks.toml").write_text(
        f'[[tasks]]\ntask_id = "outage"\ninstruction = "call the model three times"\nnum_samples = {sessions}\n'
        f'[tasks.harness]\nname = "shell"\n[tasks.harness.options]\nargv = ["/bin/bash", "-c", {script}]\n'
    )


async def run(sessions: int, outage_s: float, engine_url: str, folder: Path) -> dict[str, Any]:
    proxy = EngineProxy(engine_url)
    await proxy.open()
    lay_out(folder, proxy.url, sessions)
    began = time.monotonic()
    polar = await asyncio.create_subprocess_exec(
        *(*POLAR, "up", "tasks.toml", "--json"), cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    printed = asyncio.create_task(polar.communicate())
    # By sessions, not by requests: a node asks its engine when it starts, too, and must have started.
    while (begun := len(list(folder.glob("begun-*")))) < min(4, sessions) and not printed.done():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    print(f"{time.monotonic() - began:4.0f} s: the engine goes; {begun} sessions have begun", flush=True)
    await proxy.shut()
    await asyncio.sleep(outage_s)
    print(f"{time.monotonic() - began:4.0f} s: the engine is back", flush=True)
    await proxy.open()
    out, _ = await printed
    print(f"{time.monotonic() - began:4.0f} s: `polar up` ended with {polar.returncode}", flush=True)
    return json.loads(out)


def report(found: dict[str, Any], command: str) -> str:
    results = found["results"]
    stages = Counter(result["stage"] for result in results)
    reasons = Counter(
        (attempt["where"], attempt["why"][:80], "yes" if attempt["counted"] else "no")
        for result in results
        for attempt in result["attempts"]
    )
    rows = [[where, why, counted, str(number)] for (where, why, counted), number in reasons.most_common()]
    summary = f"{len(results)} results: " + ", ".join(f"{number} {stage}" for stage, number in stages.items())
    attempts = table(["where", "why an attempt ended", "counted", "attempts"], rows)
    return f"{summary}\n\n{attempts}\n\n{origin(command)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="An engine outage over queued sessions.")
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--outage-s", type=float, default=120.0)
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    options = parser.parse_args()
    stub = Process(StubEngine, [REPLY], Pace(latency_s=REPLY_S))
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(run(options.sessions, options.outage_s, stub.url, Path(folder)))
    finally:
        stub.stop()
    command = f"python benchmarks/outage.py --sessions {options.sessions} --outage-s {options.outage_s:g}"
    text = report(found, command)
    print(text)
    if options.write:
        write_section("outage", text)


if __name__ == "__main__":
    main()
