"""Polar's gateway beside other proxies that capture model calls, and beside a plain relay, in the same run.

    python benchmarks/peers.py [--peers Polar OpenEnv relay] [--write] [--json FILE]

All ask the same stub engine with vLLM's routes (`stub_server.py`) over HTTP and serve the same conversations at
the chat route; the peers' environments are made by this script (`peer_programs.py`). Each peer has one core, the
stub and the sender share the others. Five questions: processor time of a call by its turn (rounds over sessions
side by side, the median of rounds); what is kept of a session of 50 turns, on disk and in memory; calls a second
with 100 to 800 sessions at once, each sending its next call as soon as it has the reply, counted for some
seconds after every session has had its first reply; after `kill -9` in the middle of such a load, how many of
the replies that arrived whole are on disk; and the rows of one real Claude Code session (`peer_session.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import signal
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from gateway_load import CHARACTERS_PER_TOKEN, NEW_CHARACTERS
from gateway_traffic import REPLY, Conversation
from page import goal, origin, table, write_json, write_section
from peer_programs import PEERS, Peer, cpu_us, rss_of
from peer_session import SessionRows, claude_code_rows
from raw_http import BadAnswer, RawConnection, Unanswered
from stub_replies import CannedReply
from stub_server import Pace, StubEngine
from target_process import Process, allow_open_files, other_cores

FIRST_CHARACTERS = int(500 * CHARACTERS_PER_TOKEN)
HALF = 0.5
TURNS = (1, 5, 20, 50)
WINDOW = 2
"""Turns that are measured together, from the one that names them."""
SETTLE_S = 0.02
"""What a peer still does after its last reply is not the next call's."""
RETRY_S = 0.1
FIRST_LIMIT_S = 20.0
"""For the first reply of every session; then calls are counted in any case."""
PROJECT = re.compile(rb"tests of project (\d+) pass")


@dataclass(frozen=True)
class Mode:
    tokens: int
    stream: bool

    @property
    def name(self) -> str:
        return f"{self.tokens} an event, {'streamed' if self.stream else 'whole'}"


MODES = (Mode(8, False), Mode(8, True), Mode(1, False), Mode(1, True))


class GrowingPrompts:
    """Ids of prompts as an engine that renders would give them: each begins with the last one and its reply."""

    def __init__(self) -> None:
        self._known: dict[bytes, array[int]] = {}

    def __call__(self, body: bytes, reply: CannedReply) -> list[int]:
        found = PROJECT.search(body)
        project = found[1] if found else b""
        ids = self._known.get(project, array("i"))
        if len(ids) > len(body) // 3:  # a new conversation by an old name
            ids = array("i")
        start, more = len(ids), max(1, len(body) // 4 - len(ids))
        prompt = [*ids, *(100 + n * 7919 % 40_000 for n in range(start, start + more))]
        self._known[project] = array("i", [*prompt, *reply.ids])
        return prompt


@dataclass(frozen=True)
class Costs:
    """Of one peer: microseconds of CPU by mode and turn."""

    peer: str
    version: str
    cpu_us: dict[str, dict[int, float]]
    disk_bytes: float
    """Of a session of all turns."""
    memory_bytes: float


@dataclass(frozen=True)
class Rate:
    peer: str
    at_once: int
    per_s: float
    per_cpu_s: float
    """Calls in a second of the peer's processor time, whatever else the machine did."""
    answered: int
    """Sessions that got at least one reply."""
    errors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loss:
    peer: str
    delivered: int
    kept: int
    """Calls on disk after the kill; more than were delivered where some were under way."""


@contextmanager
def running(make: Callable[[Path, str], Peer], stub: Process) -> Generator[Peer]:
    """A fresh peer, whom nothing keeps busy from before."""
    stub.ask("pace", Pace(8))
    with tempfile.TemporaryDirectory() as folder:
        peer = make(Path(folder), stub.url)
        try:
            yield peer
        finally:
            peer.stop()


class Talks:
    """Conversations side by side at one peer."""

    def __init__(self, peer: Peer, count: int) -> None:
        run = secrets.token_hex(4)
        seeds = [int(run, 16) % 50_000 + number for number in range(count)]
        self.lines = peer.open([f"{run}-{number}" for number in range(count)])
        self.talks = [Conversation(seed, FIRST_CHARACTERS, NEW_CHARACTERS) for seed in seeds]

    async def turn(self, *, stream: bool) -> None:
        for talk, line in zip(self.talks, self.lines, strict=True):
            talk.go_on(await line.post(talk.body(stream=stream)))

    def close(self) -> None:
        for line in self.lines:
            line.close()


async def costs_of(make: Any, stub: Process, sessions: int, rounds: int, turns: Sequence[int]) -> Costs:
    found: dict[str, dict[int, list[float]]] = {mode.name: {turn: [] for turn in turns} for mode in MODES}
    with running(make, stub) as peer:
        warm = Talks(peer, 2)
        for _ in range(3):
            await warm.turn(stream=True)
        disk, memory, kept = peer.bytes_on_disk(), rss_of(peer.pid), 0
        for _ in range(rounds):
            for mode in MODES:
                stub.ask("pace", Pace(mode.tokens))
                talks = Talks(peer, sessions)
                for turn, spent in (await _by_turn(peer, talks, mode, turns)).items():
                    found[mode.name][turn].append(spent)
                talks.close()
                kept += sessions
        await asyncio.sleep(0.5)
        disk, memory = peer.bytes_on_disk() - disk, rss_of(peer.pid) - memory
        medians = {name: {turn: median(spent) for turn, spent in by.items()} for name, by in found.items()}
        return Costs(peer.name, peer.version, medians, disk / kept, memory / kept)


async def _by_turn(peer: Peer, talks: Talks, mode: Mode, turns: Sequence[int]) -> dict[int, float]:
    spent: dict[int, float] = {}
    done = 0
    for turn in sorted(turns):
        for _ in range(turn - 1 - done):
            await talks.turn(stream=mode.stream)
        window = 1 if turn == 1 else WINDOW  # the first turn is like no other
        await asyncio.sleep(SETTLE_S)
        begun_us = cpu_us(peer.pid)
        for _ in range(window):
            await talks.turn(stream=mode.stream)
        await asyncio.sleep(SETTLE_S)
        spent[turn] = (cpu_us(peer.pid) - begun_us) / (len(talks.talks) * window)
        done = turn - 1 + window
    return spent


class Tally:
    """Replies by session, and errors."""

    def __init__(self, sessions: int) -> None:
        self.calls: Counter[int] = Counter()
        self.errors: list[str] = []
        self.all_answered = asyncio.Event()
        self._sessions = sessions

    def count(self, number: int) -> None:
        self.calls[number] += 1
        if len(self.calls) == self._sessions:
            self.all_answered.set()


async def rate_of(make: Any, stub: Process, at_once: int, seconds: float) -> Rate:
    with running(make, stub) as peer:
        talks = Talks(peer, at_once)
        tally = Tally(at_once)
        tasks = [asyncio.create_task(_send_on(talks, number, tally)) for number in range(at_once)]
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LIMIT_S):
                await tally.all_answered.wait()
        before, begun_us, begun = tally.calls.total(), cpu_us(peer.pid), time.monotonic()
        await asyncio.sleep(seconds)
        wall_s, calls = time.monotonic() - begun, tally.calls.total() - before
        spent_us = cpu_us(peer.pid) - begun_us
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        talks.close()
        rates = calls / wall_s, calls * 1e6 / max(spent_us, 1)
        return Rate(peer.name, at_once, *rates, answered=len(tally.calls), errors=tuple(tally.errors))


async def _send_on(talks: Talks, number: int, tally: Tally) -> None:
    """Call after call, as a harness that asks again after an error."""
    talk, line = talks.talks[number], talks.lines[number]
    while True:
        try:
            talk.go_on(await line.post(talk.body(stream=True)))
            tally.count(number)
        except (BadAnswer, Unanswered, OSError) as error:
            tally.errors.append(str(error)[:200])
            await asyncio.sleep(RETRY_S)


async def loss_of(make: Any, stub: Process, at_once: int, replies: int) -> Loss:
    with running(make, stub) as peer:
        talks = Talks(peer, at_once)
        before = peer.rows_on_disk()
        delivered, killed = 0, asyncio.Event()

        async def session(talk: Conversation, line: RawConnection) -> None:
            nonlocal delivered
            while not killed.is_set():
                talk.go_on(await line.post(talk.body(stream=True)))
                delivered += 1
                if delivered == replies:
                    os.kill(peer.pid, signal.SIGKILL)
                    killed.set()

        pairs = zip(talks.talks, talks.lines, strict=True)
        ends = await asyncio.gather(*(session(*pair) for pair in pairs), return_exceptions=True)
        for end in ends:
            if end is not None and not isinstance(end, Unanswered | OSError):
                raise end
        return Loss(peer.name, delivered, peer.rows_on_disk() - before)


def cost_table(costs: Sequence[Costs], turns: Sequence[int]) -> str:
    head = ["CPU ms of a call", *(f"{found.peer} {found.version}" for found in costs)]
    rows = [
        [f"turn {turn}, {mode.name}", *(f"{found.cpu_us[mode.name][turn] / 1000:.2f}" for found in costs)]
        for mode in MODES
        for turn in turns
    ]
    last = max(turns) + WINDOW - 1
    rows.append([f"kB on disk, session of {last} turns", *(f"{found.disk_bytes / 1000:.0f}" for found in costs)])
    rows.append(
        [f"kB of memory, session of {last} turns", *(f"{found.memory_bytes / 1000:.0f}" for found in costs)]
    )
    return table(head, rows)


def rate_table(rates: Sequence[Rate], losses: Sequence[Loss]) -> str:
    names = list(dict.fromkeys([*(rate.peer for rate in rates), *(loss.peer for loss in losses)]))
    sizes = sorted({rate.at_once for rate in rates})
    by = {(rate.peer, rate.at_once): rate for rate in rates}
    rows = [
        [f"calls/s, {size} sessions at once", *(_rate_cell(by[name, size]) for name in names)] for size in sizes
    ]
    rows += [
        [f"calls per CPU second, {size} sessions", *(f"{by[name, size].per_cpu_s:.0f}" for name in names)]
        for size in sizes
    ]
    lost = {loss.peer: loss for loss in losses}
    kept = [f"{lost[name].kept} of {lost[name].delivered}" for name in names]
    rows.append(["calls on disk after `kill -9`, of replies delivered", *kept])
    return table(["", *names], rows)


def _rate_cell(rate: Rate) -> str:
    starved = f" ({rate.at_once - rate.answered} without a reply)" if rate.answered < rate.at_once else ""
    return f"{rate.per_s:.0f}{starved}{f', {len(rate.errors)} errors' if rate.errors else ''}"


def session_table(rows: Sequence[SessionRows]) -> str:
    head = ["one Claude Code session", "calls", "rows", "tokens in rows", "trained tokens", "sampled tokens"]
    return table(
        head,
        [list(map(str, (row.peer, row.calls, row.rows, row.tokens, row.trained, row.sampled))) for row in rows],
    )


def goals(costs: Sequence[Costs]) -> str:
    by = {found.peer: found for found in costs}
    if "Polar" not in by or "OpenEnv" not in by:
        return ""
    later = max(turn for turn in by["Polar"].cpu_us[MODES[0].name] if turn <= 20)
    ratios = {
        mode.name: by["Polar"].cpu_us[mode.name][later] / by["OpenEnv"].cpu_us[mode.name][later] for mode in MODES
    }
    measured = ", ".join(f"{name}: {ratio:.2f}" for name, ratio in ratios.items())
    return goal(f"at turn {later} at most {HALF:g} x OpenEnv's CPU", max(ratios.values()) <= HALF, measured)


async def measure(options: argparse.Namespace, stub: Process) -> tuple[list[Costs], list[Rate], list[Loss]]:
    costs: list[Costs] = []
    rates: list[Rate] = []
    losses: list[Loss] = []
    for make in (make for make in PEERS if make.name in options.peers):
        costs.append(await costs_of(make, stub, options.calls, options.rounds, options.turns))
        print(f"{make.name}: costs", flush=True)
        for size in options.sessions:
            rates.append(await rate_of(make, stub, size, options.seconds))
            print(
                f"{make.name}: {rates[-1].per_s:.0f} calls/s with {size} sessions {rates[-1].errors[:1]}",
                flush=True,
            )
        losses.append(await loss_of(make, stub, 16, options.replies))
        print(f"{make.name}: {losses[-1].kept} calls left of {losses[-1].delivered}", flush=True)
    return costs, rates, losses


async def claude_code_sessions() -> list[SessionRows]:
    with tempfile.TemporaryDirectory() as folder:
        return await claude_code_rows(Path(folder))


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--peers", nargs="+", default=[make.name for make in PEERS])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--calls", type=int, default=6, help="sessions side by side in a round")
    parser.add_argument("--turns", type=int, nargs="+", default=TURNS)
    parser.add_argument("--sessions", type=int, nargs="+", default=[100, 200, 400, 800], help="at once")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each number of sessions")
    parser.add_argument("--replies", type=int, default=100, help="delivered before the kill")
    parser.add_argument(
        "--claude-code", action=argparse.BooleanOptionalAction, default=True, help="one real session"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into the docs")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    allow_open_files()
    os.sched_setaffinity(0, other_cores())
    stub = Process(StubEngine, (REPLY,), prompt_ids=GrowingPrompts(), cores=other_cores())
    try:
        costs, rates, losses = await measure(options, stub)
    finally:
        stub.stop()
    command = f"python benchmarks/peers.py --rounds {options.rounds} --seconds {options.seconds:g}"
    sessions = await claude_code_sessions() if options.claude_code else []
    parts = [
        cost_table(costs, options.turns),
        rate_table(rates, losses),
        session_table(sessions) if sessions else "",
        goals(costs),
        origin(command),
    ]
    text = "\n\n".join(part for part in parts if part)
    print(text)
    found = {"costs": costs, "rates": rates, "losses": losses, "claude_code": sessions}
    write_json(options.json, command, {name: [asdict(row) for row in rows] for name, rows in found.items()})
    if options.write:
        write_section("peers", text)


if __name__ == "__main__":
    uvloop.run(main())
