"""Many sessions at once at one gateway process: calls a second, processor time by length of context, memory.

The gateway has one core, the stub engine and the sender share the others. Every session is a conversation of its
own on a connection of its own: a first turn, counted apart, and later turns with about 300 new tokens each (the
output of a tool and a reply), streamed. All sessions send their next call as soon as they have the reply.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gateway_targets import GatewayTarget
from gateway_traffic import REPLY, Conversation
from page import goal, table
from raw_http import RawConnection
from stub_server import Pace, StubEngine
from target_process import Process, other_cores, own_core

CALLS_PER_S = 300
GROWTH = 1.75
NEW_CHARACTERS = 1000
"""Of a tool's output: with the reply and the tags around both about 300 tokens."""
CHARACTERS_PER_TOKEN = 4.3
CONTEXTS = (8_000, 80_000)
LEAST_SESSIONS = 8
"""Run one after another where fewer are asked for at once: a single one is over too soon."""


@dataclass(frozen=True)
class Load:
    at_once: int
    sessions: int
    turns: int
    first_tokens: int = 2_000
    """Of the first prompt."""


@dataclass(frozen=True)
class Outcome:
    """Of one load; times are of the gateway's process."""

    load: Load
    calls: int
    """Later ones."""
    wall_s: float
    cpu_us: float
    """Of a later call."""
    first_cpu_us: float
    stub_us: float
    median_ms: float
    worst_ms: float
    """The 99th of a hundred."""
    session_bytes: float
    """Growth of the resident memory by session, all still open."""

    @property
    def per_s(self) -> float:
        return self.calls / self.wall_s

    @property
    def per_cpu_s(self) -> float:
        return 1e6 / self.cpu_us


@contextmanager
def one_core_gateway() -> Generator[tuple[Process, Process]]:
    """A fresh gateway and its stub."""
    with tempfile.TemporaryDirectory() as folder:
        stub = Process(StubEngine, (REPLY,), Pace(tokens=8), cores=other_cores())
        gateway = Process(GatewayTarget, Path(folder), stub.url, cores=own_core())
        try:
            yield gateway, stub
        finally:
            gateway.stop()
            stub.stop()


class Sender:
    """All sessions of one load at one target."""

    def __init__(self, target: Process, load: Load) -> None:
        self._target = target
        self._load = load
        run = secrets.token_hex(4)
        self._ids = [f"{run}-{number}" for number in range(load.sessions)]
        self._gate = asyncio.Semaphore(load.at_once)
        self._times_s: list[float] = []

    async def open(self) -> None:
        keys = self._target.ask("open", self._ids)
        self._lines = [RawConnection(self._target.url, key=key) for key in keys]
        first = int(self._load.first_tokens * CHARACTERS_PER_TOKEN)
        self._talks = [Conversation(seed, first, NEW_CHARACTERS) for seed in range(self._load.sessions)]

    async def turns(self, count: int) -> list[float]:
        """So many turns of each session; the seconds of each call."""
        self._times_s = []
        async with asyncio.TaskGroup() as group:
            for talk, line in zip(self._talks, self._lines, strict=True):
                group.create_task(self._session(talk, line, count))
        return self._times_s

    async def _session(self, talk: Conversation, line: RawConnection, count: int) -> None:
        async with self._gate:
            for _ in range(count):
                body = talk.body(stream=True)
                begun = time.monotonic()
                reply = await line.post(body)
                self._times_s.append(time.monotonic() - begun)
                talk.go_on(reply)

    async def close(self) -> None:
        for line in self._lines:
            line.close()
        self._target.ask("close", self._ids)


async def measure_load(gateway: Process, stub: Process, load: Load) -> Outcome:
    sender = Sender(gateway, load)
    empty = gateway.ask("read")
    await sender.open()
    opened = gateway.ask("read")
    await sender.turns(1)
    first, stub_first, begun = gateway.ask("read"), stub.ask("read"), time.monotonic()
    times_s = sorted(await sender.turns(load.turns - 1))
    wall_s = time.monotonic() - begun
    last, stub_last = gateway.ask("read"), stub.ask("read")
    await sender.close()
    return Outcome(
        load=load,
        calls=len(times_s),
        wall_s=wall_s,
        cpu_us=(last["cpu"] - first["cpu"]) / len(times_s),
        first_cpu_us=(first["cpu"] - opened["cpu"]) / load.sessions,
        stub_us=(stub_last["cpu"] - stub_first["cpu"]) / len(times_s),
        median_ms=median(times_s) * 1000,
        worst_ms=times_s[len(times_s) * 99 // 100] * 1000,
        session_bytes=(last["rss"] - empty["rss"]) / load.sessions,
    )


async def measure_loads(sizes: Sequence[int], turns: int) -> list[Outcome]:
    os.sched_setaffinity(0, other_cores())
    outcomes: list[Outcome] = []
    for at_once in sizes:
        with one_core_gateway() as (gateway, stub):
            await measure_load(gateway, stub, Load(2, 2, 3))  # warms up
            outcomes.append(await measure_load(gateway, stub, Load(at_once, max(at_once, LEAST_SESSIONS), turns)))
        print(f"{at_once} sessions at once: {outcomes[-1].per_s:.0f} calls/s", flush=True)
    return outcomes


async def measure_contexts(contexts: Sequence[int], turns: int) -> list[Outcome]:
    os.sched_setaffinity(0, other_cores())
    with one_core_gateway() as (gateway, stub):
        await measure_load(gateway, stub, Load(2, 2, 3))
        return [await measure_load(gateway, stub, Load(4, 8, turns, tokens)) for tokens in contexts]


def load_table(outcomes: Sequence[Outcome]) -> str:
    head = [
        "sessions at once",
        "calls/s",
        "calls per CPU second",
        "CPU ms, later call",
        "CPU ms, first call",
        "ms a call, median / 99 %",
        "stub, CPU ms a call",
        "kB of memory a session",
    ]
    rows = [
        [
            str(found.load.at_once),
            f"{found.per_s:.0f}",
            f"{found.per_cpu_s:.0f}",
            f"{found.cpu_us / 1000:.2f}",
            f"{found.first_cpu_us / 1000:.2f}",
            f"{found.median_ms:.0f} / {found.worst_ms:.0f}",
            f"{found.stub_us / 1000:.2f}",
            f"{found.session_bytes / 1000:.0f}",
        ]
        for found in outcomes
    ]
    return table(head, rows)


def context_table(outcomes: Sequence[Outcome]) -> str:
    rows = [
        [f"{found.load.first_tokens}", f"{found.cpu_us / 1000:.2f}", f"{found.first_cpu_us / 1000:.1f}"]
        for found in outcomes
    ]
    return table(["tokens of context", "CPU ms, later call", "CPU ms, first call"], rows)


def load_goals(outcomes: Sequence[Outcome], contexts: Sequence[Outcome]) -> str:
    slowest = min(outcomes, key=lambda found: found.per_cpu_s)
    measured = (
        f"{slowest.per_cpu_s:.0f} in a CPU second, {slowest.per_s:.0f} in one of the clock, the least of all"
    )
    lines = [goal(f"at least {CALLS_PER_S} calls/s on one core", slowest.per_cpu_s >= CALLS_PER_S, measured)]
    if len(contexts) > 1:
        growth = contexts[-1].cpu_us / contexts[0].cpu_us
        tokens = [found.load.first_tokens for found in contexts]
        what = f"CPU of a later call at most {GROWTH:g} x from {tokens[0]} to {tokens[-1]} tokens of context"
        lines.append(goal(what, growth <= GROWTH, f"{growth:.2f} x"))
    return "\n".join(lines)


def load_json(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [{**asdict(found), "per_s": found.per_s, "per_cpu_s": found.per_cpu_s} for found in outcomes]
