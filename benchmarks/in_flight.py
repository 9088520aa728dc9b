"""Many sessions in flight on one node: its memory, the stalls of its loop, its processor time.

    python benchmarks/in_flight.py [--sessions 100 250 500 1000] [--write] [--json FILE]

The harness is the cheapest real process there is: a bash script that makes three model calls by itself over
`/dev/tcp`. `local` runtime, real pipeline, journal and gateway, the `vllm` engine at a stub in another process.
The stub holds every session's second reply until all sessions wait for theirs; so all are in flight, each with a
process, a connection and a generation under way. Then it lets the replies go, 200 a second. Stalls are those of
a ticker in the node's loop, for each of three phases: as sessions start, while all wait (3 s), as they end.
Memory is that of the node's process, and of all it has started (proportional share) while all wait.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from loop_watch import LoopWatch, watched_loop
from node_targets import Spent, wrongs_of
from page import origin, table, write_json, write_section
from stub_server import Pace, StubEngine
from target_process import Process, rss_bytes

from polar.config import Config, PoolConfig
from polar.data.source import TaskFileSource
from polar.node.wiring import Node, open_node
from polar.store.paths import RunPaths
from polar.types import Budgets, SessionResult, Spec, TaskRequest, Trajectory

REPLY = "ok"
SETTLED_S = 3.0
RELEASED_PER_S = 200
LIMIT_S = 600.0
"""Only ends a hang."""
SCRIPT = r"""
address=${POLAR_BASE_URL#http://}; messages='{"role":"user","content":"'$POLAR_SESSION'"}'
for turn in 1 2 3; do
  body='{"model":"'$POLAR_MODEL'","messages":['$messages']}'
  exec 3<>/dev/tcp/${address%:*}/${address##*:} || exit 1
  printf 'POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\nconnection: close\r\n'\
'content-type: application/json\r\ncontent-length: %s\r\n\r\n%s' "$POLAR_API_KEY" "${#body}" "$body" >&3
  reply=; while IFS= read -r line <&3 || [ -n "$line" ]; do reply=$line; line=; done
  exec 3>&-
  case $reply in *'"content":"ok"'*) ;; *) echo "$reply"; exit 1 ;; esac
  messages=$messages',{"role":"assistant","content":"ok"},{"role":"user","content":"turn '$turn'"}'
done
"""


@dataclass(frozen=True)
class Flight:
    sessions: int
    most_running: int
    start_s: float
    """Until all were in flight."""
    stall_s: tuple[float, float, float]
    """As sessions start, while all wait, as they end."""
    node_bytes: tuple[int, int]
    """Before the first session, and while all wait."""
    children_bytes: int
    """Of all processes of all sessions."""
    cpu_s: float
    """Of the node's process, for all sessions."""
    helpers_cpu_s: float
    """Of all it started."""
    failures: tuple[str, ...]


class FlyingNode:
    """A node in this process; `up` starts the sessions, `waiting` looks while all wait, `down` sees them end."""

    def __init__(self, folder: Path, engine_url: str) -> None:
        self._folder = folder
        self._engine_url = engine_url
        self._starting_s = self._waiting_s = 0.0
        self._waiting_bytes = self._children_bytes = 0

    async def start(self, stack: AsyncExitStack) -> str:
        return ""

    def read(self) -> dict[str, float]:
        return {}

    async def up(self, sessions: int) -> None:
        pools = PoolConfig(init=8, ready=16, running=sessions, postrun=8)
        config = Config(engine=Spec(name="vllm", options={"url": self._engine_url}), pools=pools)
        self._run = AsyncExitStack()
        self._watch = await self._run.enter_async_context(watched_loop())
        node = await self._run.enter_async_context(open_node(config, RunPaths.create(self._folder)))
        self._results: list[SessionResult] = []
        self._before_bytes, self._spent, self._sessions = rss_bytes(), Spent(), sessions
        self._watch.restart()
        self._serving = asyncio.create_task(self._serve(node, self._watch))

    async def _serve(self, node: Node, watch: LoopWatch) -> None:
        async def keep(result: SessionResult, _: Trajectory | None) -> None:
            self._results.append(result)

        task = TaskRequest(
            task_id=f"flight-{self._sessions}",
            instruction="call the model three times",
            num_samples=self._sessions,
            harness=Spec(name="shell", options={"argv": ["/bin/bash", "-c", SCRIPT]}),
            budgets=Budgets(init_s=LIMIT_S, run_s=LIMIT_S, postrun_s=LIMIT_S),
        )
        await node.serve(TaskFileSource([task], keep), (watch,))

    async def ended_early(self) -> int:
        """Sessions that have a result while all should wait."""
        return len(self._results)

    async def waiting(self) -> None:
        self._starting_s = self._watch.longest_s
        self._watch.restart()
        await asyncio.sleep(SETTLED_S)
        self._waiting_s, self._waiting_bytes = self._watch.longest_s, rss_bytes()
        self._children_bytes = await asyncio.to_thread(_descendants_bytes, os.getpid())
        self._watch.restart()

    async def down(self, start_s: float) -> Flight:
        async with asyncio.timeout(LIMIT_S):
            await self._serving
        own_s = self._spent.own_s()
        ending_s, most = self._watch.longest_s, self._watch.most_running
        await self._run.aclose()
        return Flight(
            sessions=self._sessions,
            most_running=most,
            start_s=start_s,
            stall_s=(self._starting_s, self._waiting_s, ending_s),
            node_bytes=(self._before_bytes, self._waiting_bytes),
            children_bytes=self._children_bytes,
            cpu_s=own_s,
            helpers_cpu_s=self._spent.children_s(),
            failures=tuple(wrongs_of(self._results, self._sessions)),
        )


def _descendants_bytes(pid: int) -> int:
    """What the processes below this one hold, shared pages counted in parts."""
    total = 0
    for child in _children(pid):
        with suppress(OSError):
            for line in Path(f"/proc/{child}/smaps_rollup").read_text().splitlines():
                total += int(line.split()[1]) * 1024 if line.startswith("Pss:") else 0
        total += _descendants_bytes(child)
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return found


async def fly(sessions: int) -> Flight:
    with tempfile.TemporaryDirectory() as folder:
        stub = Process(StubEngine, (REPLY, REPLY), Pace(8, held_call=2))
        node = Process(FlyingNode, Path(folder) / "runs", stub.url)
        try:
            begun = time.monotonic()
            node.ask("up", sessions)
            while (held := stub.ask("read")["held"]) < sessions:
                if node.ask("ended_early") or time.monotonic() - begun > LIMIT_S:
                    break  # something went wrong: the results say what
                await asyncio.sleep(0.1)
            start_s = time.monotonic() - begun
            if held == sessions:
                node.ask("waiting")
            stub.ask("pace", Pace(8))
            stub.ask("release", sessions / RELEASED_PER_S)
            flight: Flight = node.ask("down", start_s)
        finally:
            node.stop()
            stub.stop()
    if flight.failures:
        raise SystemExit(f"{len(flight.failures)} of {sessions} sessions went wrong: {flight.failures[0]}")
    print(f"{sessions} in flight: {flight.node_bytes[1] / 1e6:.0f} MB, stalls {flight.stall_s}", flush=True)
    return flight


HEAD = (
    "in flight",
    "s until all are",
    "node's memory, MB",
    "kB a session",
    "sessions' processes, MB",
    "longest stall, ms: starting",
    "all waiting",
    "ending",
    "node's CPU ms, a session",
    "children's CPU ms, a session",
)


def row(flight: Flight) -> list[str]:
    before, waiting = flight.node_bytes
    return [
        str(flight.most_running),
        f"{flight.start_s:.0f}",
        f"{waiting / 1e6:.0f}",
        f"{(waiting - before) / flight.sessions / 1000:.0f}",
        f"{flight.children_bytes / 1e6:.0f}",
        *(f"{stall * 1000:.0f}" for stall in flight.stall_s),
        f"{flight.cpu_s * 1000 / flight.sessions:.1f}",
        f"{flight.helpers_cpu_s * 1000 / flight.sessions:.1f}",
    ]


async def measure(sizes: Sequence[int]) -> list[Flight]:
    return [await fly(size) for size in sizes]


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--sessions", type=int, nargs="+", default=[100, 250, 500, 1000], help="in flight at once")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    flights = await measure(options.sessions)
    command = f"python benchmarks/in_flight.py --sessions {' '.join(map(str, options.sessions))}"
    text = f"{table(HEAD, [row(flight) for flight in flights])}\n\n{origin(command)}"
    print(text)
    write_json(options.json, command, [asdict(flight) for flight in flights])
    if options.write:
        write_section("in flight", text)


if __name__ == "__main__":
    asyncio.run(main())
