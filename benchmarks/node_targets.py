"""What the node benchmark measures, each in a process of its own: a node that runs pi, and pi processes alone."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Generator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from bare_harness import context_at, run_bare
from loop_watch import LoopWatch, watched_loop

from polar.config import Config, PoolConfig
from polar.data.source import TaskFileSource
from polar.harnesses.pi import Pi, PiOptions
from polar.node.wiring import open_node
from polar.store.paths import RunPaths
from polar.types import SessionResult, Slot, Spec, Stage, TaskRequest, Trajectory

INSTRUCTION = "Write the word ready into the file out.txt, then say that it is done."
REPLIES = (
    'I look first. <tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>',
    'Now the file. <tool_call>{"name": "bash", "arguments": {"command": "echo ready > out.txt"}}</tool_call>',
    "The file out.txt now holds the word ready.",
)
CALLS = len(REPLIES)
CONTEXT_TOKENS = 131_071
EXIT_HOOK = """\
const fs = require('fs');
require('module').enableCompileCache(%s);
process.on('exit', () => {
  const used = process.resourceUsage();
  fs.appendFileSync(%s, `${(used.userCPUTime + used.systemCPUTime) / 1e6}\\n`);
});
"""


@dataclass(frozen=True)
class Order:
    """One run: so many sessions, so many of them at once."""

    at_once: int
    sessions: int


@dataclass(frozen=True)
class Work:
    """What the sessions of a run took, without what is set up around them."""

    wall_s: float
    own_cpu_s: float
    failures: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """What one run took; processor time in seconds of all its sessions together."""

    order: Order
    wall_s: float
    own_cpu_s: float
    """Of the process that ran the sessions."""
    children_cpu_s: float
    """Of all it started: pi, what pi started, and helpers."""
    pi_cpu_s: float
    """As pi itself counts it at its end."""
    longest_stall_s: float
    failures: tuple[str, ...] = ()

    @property
    def per_s(self) -> float:
        return self.order.sessions / self.wall_s


def pi_program(folder: Path, installed: dict[str, Path]) -> tuple[str, ...]:
    """pi by the pinned Node; it notes its own processor time in `folder` when it ends."""
    hook = folder / "exit.cjs"
    # Sessions share compiled code, as they do with the program that the harness brings along.
    paths = (folder.parent.parent / "compiled", folder / "pi-cpu")
    hook.write_text(EXIT_HOOK % tuple(orjson.dumps(str(path)).decode() for path in paths))
    node, script = Pi(PiOptions()).program(installed)
    return node, "--require", str(hook), script


def pi_cpu_s(folder: Path) -> float:
    noted = folder / "pi-cpu"
    return sum(map(float, noted.read_text().split())) if noted.exists() else 0.0


class Spent:
    """Processor time of this process and of the children that have ended, since it was made."""

    def __init__(self) -> None:
        self._own, self._children = time.process_time(), _children_s()

    def own_s(self) -> float:
        return time.process_time() - self._own

    def children_s(self) -> float:
        return _children_s() - self._children


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class PiTarget:
    """What both sides share: a folder for each run."""

    def __init__(self, folder: Path, engine_url: str, installed: dict[str, Path]) -> None:
        self._folder = folder
        self._engine_url = engine_url
        self._installed = installed
        self._runs = 0

    async def start(self, stack: AsyncExitStack) -> str:
        return ""

    def read(self) -> dict[str, float]:
        return {}

    async def run(self, order: Order) -> Run:
        self._runs += 1
        folder = self._folder / str(self._runs)
        folder.mkdir(parents=True)
        program = pi_program(folder, self._installed)
        async with watched_loop() as watch:
            spent = Spent()
            work = await self._sessions(order, folder, program, watch)
        return Run(
            order=order,
            wall_s=work.wall_s,
            own_cpu_s=work.own_cpu_s,
            children_cpu_s=spent.children_s(),  # also of those that ended with the node
            pi_cpu_s=pi_cpu_s(folder),
            longest_stall_s=watch.longest_s,
            failures=work.failures,
        )

    async def _sessions(self, order: Order, folder: Path, program: tuple[str, ...], watch: LoopWatch) -> Work:
        raise NotImplementedError


class PiNode(PiTarget):
    """Sessions of pi through a node: `local`, the real pipeline, journal and gateway, the `vllm` engine."""

    async def _sessions(self, order: Order, folder: Path, program: tuple[str, ...], watch: LoopWatch) -> Work:
        results: list[SessionResult] = []

        async def keep(result: SessionResult, _: Trajectory | None) -> None:
            results.append(result)

        task = TaskRequest(
            task_id=f"run-{self._runs}",  # the stub counts the calls of each session by its id
            instruction=INSTRUCTION,
            num_samples=order.sessions,
            harness=Spec(name="pi", options={"program": program, "tools": ["bash"]}),
        )
        async with open_node(node_config(self._engine_url, order.at_once), RunPaths.create(folder)) as node:
            watch.restart()
            spent, begun = Spent(), time.monotonic()
            await node.serve(TaskFileSource([task], keep), (watch,))
            wall_s, own_s = time.monotonic() - begun, spent.own_s()
        return Work(wall_s, own_s, tuple(wrongs_of(results, order.sessions)))


class PiAlone(PiTarget):
    """The same pi processes, started bare against the stub's chat route."""

    async def _sessions(self, order: Order, folder: Path, program: tuple[str, ...], watch: LoopWatch) -> Work:
        gate = asyncio.Semaphore(order.at_once)
        pi = Pi(PiOptions(program=program, tools=("bash",)))
        wrongs: list[str] = []

        async def session(number: int) -> None:
            async with gate:
                place = folder / f"s{number}"
                wrongs.extend(await self._session(pi, place, f"{folder.name}-{number}"))

        watch.restart()
        spent, begun = Spent(), time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(order.sessions):
                group.create_task(session(number))
        return Work(time.monotonic() - begun, spent.own_s(), tuple(wrongs))

    async def _session(self, pi: Pi, place: Path, key: str) -> list[str]:
        slot = Slot(base_url=self._engine_url, key=key, model="polar", context_tokens=CONTEXT_TOKENS)
        wrong = await run_bare(pi, place, context_at(place, slot, INSTRUCTION, {}))
        if wrong or not (place / "work" / "out.txt").exists():
            return [f"pi alone: {wrong or 'no out.txt'}"]
        return []


def node_config(engine_url: str, at_once: int) -> Config:
    """`at_once` run slots; the other pools are wide enough that runs wait for nothing else."""
    beside = max(2, at_once // 2)
    pools = PoolConfig(init=beside, ready=max(2, at_once), running=at_once, postrun=beside)
    return Config(engine=Spec(name="vllm", options={"url": engine_url}), pools=pools)


def wrongs_of(results: list[SessionResult], sessions: int) -> Generator[str]:
    if len(results) != sessions:
        yield f"{len(results)} results of {sessions} sessions"
    for result in results:
        if result.stage is not Stage.COMPLETED or result.statistics.calls != CALLS:
            yield f"{result.stage}, {result.statistics.calls} calls: {result.failure}"


def plain(run: Run) -> dict[str, Any]:
    return {
        "at_once": run.order.at_once,
        "sessions": run.order.sessions,
        "per_s": run.per_s,
        "wall_s": run.wall_s,
        "own_cpu_s": run.own_cpu_s,
        "children_cpu_s": run.children_cpu_s,
        "pi_cpu_s": run.pi_cpu_s,
        "longest_stall_s": run.longest_stall_s,
    }
