"""What a model call costs at the gateway: processor time per call over an HTTP engine, against two relays.

    python benchmarks/gateway.py [--write] [--json FILE]                        # both parts, about 5 minutes
    python benchmarks/gateway.py --only calls --rounds 2 --calls 5              # a quick look, under 30 s
    python benchmarks/gateway.py --only sessions --sessions 64 --contexts       # many sessions at once

Calls, one after another: the first call of a session with a prompt of about 10,000 tokens, and calls from the 20th
turn of an append-only session whose history has grown to the same size; streamed or not, with one and with eight
tokens in each event of the engine. Events come as fast as the stub writes them, so that a reader finds several at
once, and, in cases of their own, 1 ms apart, so that each is read alone. The engine is a stub with vLLM's routes
(`stub_server.py`), the gateway's is the real `vllm` engine. The baselines get the same bytes from the same stub: a
bare aiohttp relay, and one that also parses the request and inserts one SQLite row. Each has a process; processor
time is the whole process's, user and system, all threads; the median over rounds. The split comes from a second
gateway process with timed functions. Sessions at once are `gateway_load.py`. `--write` puts the tables into
docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from gateway_load import (
    CONTEXTS,
    context_table,
    load_goals,
    load_json,
    load_table,
    measure_contexts,
    measure_loads,
)
from gateway_parts import PARTS
from gateway_targets import GatewayTarget, RecordingRelayTarget, RelayTarget
from gateway_traffic import REPLY, Conversation
from page import goal, origin, table, write_json, write_section
from raw_http import RawConnection
from stub_server import Pace, StubEngine
from target_process import Process, allow_open_files

GATEWAY, TIMED, RELAY, RECORDING = "gateway", "gateway, timed", "relay", "recording relay"
STUB = "stub"
GOALS_MS = {8: 3.0, 1: 4.0}
"""CPU of a later call, by tokens in an event."""
SETTLE_S = 0.02
"""What a process still does after its last reply is not the next call's."""


@dataclass(frozen=True)
class Case:
    """One column. Cases of later turns follow each other in the same sessions."""

    turn: int
    tokens: int
    """In each event of the engine."""
    stream: bool
    gap_s: float = 0.0
    """Between the events."""

    @property
    def name(self) -> str:
        paced = f", {self.gap_s * 1000:g} ms apart" if self.gap_s else ""
        return f"turn {self.turn}, {self.tokens} an event{paced}{', streamed' if self.stream else ''}"


@dataclass(frozen=True)
class Sample:
    """One round of one case at one target, per call."""

    spent: dict[str, float]
    """Microseconds by part; `cpu` and `wall` are of the whole call."""
    stored_bytes: float


@dataclass(frozen=True)
class Size:
    turns: int
    tokens: int
    calls: int

    def conversation(self, label: str, *, first: bool) -> Conversation:
        """The tokens in one first prompt, or a fifth at the start and the rest in tool outputs."""
        characters = int(self.tokens * 3.6)
        later = max(40, int(characters * 0.8 / (self.turns - 1) - 250))
        return Conversation(hash_of(label), characters if first else characters // 5, later)


def cases(turns: int, gap_s: float) -> list[Case]:
    plain = [Case(turn, tokens, stream) for turn in (1, turns) for tokens in (8, 1) for stream in (False, True)]
    spaced = [Case(turns, tokens, True, gap_s) for tokens in (8, 1)] if gap_s else []
    return [*plain, *spaced]


def hash_of(label: str) -> int:
    """The same conversations in every run."""
    return int.from_bytes(label.encode()[-6:]) % 100_003


@contextmanager
def processes() -> Generator[dict[str, Process]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def started(*arguments: object, **options: Any) -> Process:
            process = Process(*arguments, **options)
            stack.callback(process.stop)
            return process

        for name in ("plain", "timed"):
            (folder / name).mkdir()
        stub = started(StubEngine, (REPLY,))
        yield {
            STUB: stub,
            GATEWAY: started(GatewayTarget, folder / "plain", stub.url),
            TIMED: started(GatewayTarget, folder / "timed", stub.url, timed=True),
            RELAY: started(RelayTarget, stub.url),
            RECORDING: started(RecordingRelayTarget, stub.url, folder),
        }


class Round:
    """One round at one target: fresh sessions, their first calls, and their later ones."""

    def __init__(self, process: Process, stub: Process, size: Size, *, through: bool) -> None:
        self._process = process
        self._stub = stub
        self._size = size
        self._through = through
        """Whether histories are built by calls; a relay keeps none, so it needs none."""

    async def first(self, case: Case, label: str, canned: bytes) -> Sample:
        return (await self._sessions(label, [case], canned, first=True))[0]

    async def later(self, of: Sequence[Case], label: str, canned: bytes) -> list[Sample]:
        return await self._sessions(label, of, canned, first=False)

    async def _sessions(self, label: str, of: Sequence[Case], canned: bytes, *, first: bool) -> list[Sample]:
        ids = [f"{label}-{index}" for index in range(self._size.calls)]
        keys = self._process.ask("open", ids)
        talks = [self._size.conversation(id, first=first) for id in ids]
        lines = [RawConnection(self._process.url, key=key) for key in keys]
        try:
            for talk, line in zip(talks, lines, strict=True):
                for _ in range(0 if first else self._size.turns - 1):
                    talk.go_on(await line.post(talk.body(stream=False)) if self._through else canned)
            return [await self._measure(case, talks, lines) for case in of]
        finally:
            for line in lines:
                line.close()
            self._process.ask("close", ids)

    async def _measure(self, case: Case, talks: list[Conversation], lines: list[RawConnection]) -> Sample:
        calls = len(talks)
        bodies = [talk.body(stream=case.stream) for talk in talks]
        self._stub.ask("pace", Pace(case.tokens, case.gap_s))
        await asyncio.sleep(SETTLE_S)
        before, stub_before, begun = self._process.ask("read"), self._stub.ask("read"), time.monotonic()
        replies = [await line.post(body) for line, body in zip(lines, bodies, strict=True)]
        wall_s = time.monotonic() - begun
        await asyncio.sleep(SETTLE_S)
        after, stub_after = self._process.ask("read"), self._stub.ask("read")
        for talk, reply in zip(talks, replies, strict=True):
            talk.go_on(reply)
        stored = self._process.ask("stored_bytes", calls)
        spent = {name: (after[name] - before.get(name, 0)) / calls for name in after}
        stub_us = (stub_after["cpu"] - stub_before["cpu"]) / calls
        return Sample({**spent, "wall": wall_s * 1e6 / calls, "stub": stub_us}, sum(stored) / calls)


async def measure_all(rounds: int, size: Size, of: Sequence[Case]) -> dict[tuple[str, str], list[Sample]]:
    samples: dict[tuple[str, str], list[Sample]] = {}
    with processes() as targets:
        stub = targets.pop(STUB)
        canned = await RawConnection(stub.url).post(Conversation(0, 40, 40).body(stream=False))
        for number in range(rounds + 1):
            for name, process in targets.items():
                at = Round(process, stub, size, through=name in (GATEWAY, TIMED))
                found = [
                    (case, await at.first(case, f"r{number}-{index}", canned))
                    for index, case in enumerate(of)
                    if case.turn == 1
                ]
                last = [case for case in of if case.turn > 1]
                last = last[number % len(last) :] + last[: number % len(last)]  # no case is always the first
                found += zip(last, await at.later(last, f"r{number}-later", canned), strict=True)
                for case, sample in found:
                    if number:  # the first round warms everything up
                        samples.setdefault((case.name, name), []).append(sample)
            print(f"round {number} of {rounds}", flush=True)
    return samples


class Column:
    """Medians of one case."""

    def __init__(self, samples: dict[tuple[str, str], list[Sample]], case: Case) -> None:
        self._samples = samples
        self.case = case

    def spent(self, target: str, what: str = "cpu") -> float:
        return median(sample.spent.get(what, 0.0) for sample in self._samples[self.case.name, target])

    def stored(self, target: str) -> float:
        return median(sample.stored_bytes for sample in self._samples[self.case.name, target])

    def ratio(self, baseline: str) -> float:
        """Of the same round, in which both had the same neighbours on the machine."""
        pairs = zip(self._samples[self.case.name, GATEWAY], self._samples[self.case.name, baseline], strict=True)
        return median(gateway.spent["cpu"] / relay.spent["cpu"] for gateway, relay in pairs)

    def lines(self) -> Iterator[tuple[str, str]]:
        yield "**gateway, µs of CPU per call**", f"**{self.spent(GATEWAY):.0f}**"
        yield "relay, µs", f"{self.spent(RELAY):.0f}"
        yield "relay that parses and stores, µs", f"{self.spent(RECORDING):.0f}"
        yield "gateway, ms until the reply is whole", f"{self.spent(GATEWAY, 'wall') / 1000:.1f}"
        yield "relay that parses and stores, ms", f"{self.spent(RECORDING, 'wall') / 1000:.1f}"
        yield "gateway / relay", f"{self.ratio(RELAY):.2f}"
        yield "gateway / relay that stores", f"{self.ratio(RECORDING):.2f}"
        parts = {part: self.spent(TIMED, part) for part in PARTS}
        for part, spent in parts.items():
            yield f"of the gateway's: {part}", f"{spent:.0f}"
        yield "of the gateway's: HTTP, tasks, threads", f"{self.spent(TIMED) - sum(parts.values()):.0f}"
        yield "stub engine behind the gateway, µs", f"{self.spent(GATEWAY, 'stub'):.0f}"
        yield "tokens rendered per call", f"{self.spent(TIMED, 'rendered'):.0f}"
        yield "bytes stored per call, gateway", f"{self.stored(GATEWAY):.0f}"
        yield "bytes stored per call, relay that stores", f"{self.stored(RECORDING):.0f}"


def report(columns: Sequence[Column]) -> str:
    cells = [dict(column.lines()) for column in columns]
    body = [[name, *(column[name] for column in cells)] for name in cells[0]]
    return table(["", *(column.case.name for column in columns)], body)


def goals(columns: Sequence[Column]) -> str:
    """Of events as fast as they come: those far apart cost any reader a wake-up each, a relay's too."""
    lines: list[str] = []
    for tokens, limit_ms in GOALS_MS.items():
        of = [c for c in columns if c.case.turn > 1 and c.case.tokens == tokens and not c.case.gap_s]
        spent_ms = [column.spent(GATEWAY) / 1000 for column in of]
        what = f"at most {limit_ms:g} ms of CPU for a later call with {tokens} an event"
        measured = ", ".join(f"{spent:.2f}" for spent in spent_ms)
        lines.append(goal(what, max(spent_ms) <= limit_ms, measured))
    return "\n".join(lines)


def json_of(columns: Sequence[Column], samples: dict[tuple[str, str], list[Sample]]) -> list[dict[str, Any]]:
    return [
        {
            "case": column.case.name,
            "target": target,
            "samples": [asdict(sample) for sample in samples[name, target]],
        }
        for column in columns
        for name, target in samples
        if name == column.case.name
    ]


async def measure_calls(options: argparse.Namespace) -> tuple[str, Any]:
    of = cases(options.turns, options.gap_ms / 1000)
    samples = await measure_all(options.rounds, Size(options.turns, options.tokens, options.calls), of)
    columns = [Column(samples, case) for case in of]
    return f"{report(columns)}\n\n{goals(columns)}", json_of(columns, samples)


async def measure_sessions(options: argparse.Namespace) -> tuple[str, Any]:
    outcomes = await measure_loads(options.sessions, options.turns)
    contexts = await measure_contexts(options.contexts, min(options.turns, 10)) if options.contexts else []
    parts = [load_table(outcomes), *([context_table(contexts)] if contexts else [])]
    found = {"sessions": load_json(outcomes), "contexts": load_json(contexts)}
    return "\n\n".join([*parts, load_goals(outcomes, contexts)]), found


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", choices=("calls", "sessions"), help="one part of two")
    parser.add_argument("--rounds", type=int, default=5, help="after one that warms up; the table has medians")
    parser.add_argument("--calls", type=int, default=10, help="measured calls in each round of each case")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=10_000, help="of the prompts of single calls, about")
    parser.add_argument("--gap-ms", type=float, default=1.0, help="cases whose events come so far apart; 0: none")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16, 64, 256, 800], help="at once")
    parser.add_argument("--contexts", type=int, nargs="*", default=CONTEXTS, help="tokens, shortest first")
    parser.add_argument("--write", action="store_true", help="put the tables into the docs")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    options = parser.parse_args()
    allow_open_files()
    sizes = " ".join(map(str, options.sessions))
    commands = {
        "calls": f"python benchmarks/gateway.py --only calls --rounds {options.rounds} --calls {options.calls}",
        "sessions": f"python benchmarks/gateway.py --only sessions --sessions {sizes}",
    }
    measures = {"calls": measure_calls, "sessions": measure_sessions}
    results: dict[str, Any] = {}
    for part in [options.only] if options.only else list(measures):
        text, results[part] = await measures[part](options)
        text = f"{text}\n\n{origin(commands[part])}"
        print(text)
        if options.write:
            write_section("gateway" if part == "calls" else "gateway sessions", text)
    write_json(options.json, "; ".join(commands.values()), results)


if __name__ == "__main__":
    uvloop.run(main())
