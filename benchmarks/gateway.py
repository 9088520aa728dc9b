"""What a model call costs at the gateway: processor time per call, against two relays in the same run.

    python benchmarks/gateway.py [--rounds 7] [--calls 10] [--write]

Two kinds of calls, streamed and not: the first call of a session with a prompt of about 10,000 tokens, and the
20th call of an append-only session whose history has grown to the same size. The baselines get the same bytes: a
bare aiohttp relay in front of a stub upstream, and one that also parses the request and inserts one SQLite row.
Gateway, relays, upstream and the load each have a process; calls go one after another over loopback. Processor
time is the whole process's, user and system, all threads; the median over rounds. The split comes from a second
gateway process with timed functions. `--write` puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp
from gateway_parts import PARTS
from gateway_targets import GatewayTarget, Process, RecordingRelayTarget, RelayTarget, StubUpstream
from gateway_traffic import Conversation, send
from page import origin, table, write_section

GATEWAY, TIMED, RELAY, RECORDING = "gateway", "gateway, timed", "relay", "recording relay"
TARGET_RATIO = 3.0


@dataclass(frozen=True)
class Case:
    name: str
    turn: int
    first_characters: int
    later_characters: int
    stream: bool


@dataclass(frozen=True)
class Sample:
    """One round of one case at one target, per call."""

    spent: dict[str, float]
    """Microseconds by part; `cpu` and `wall` are of the whole call."""
    stored_bytes: float


def cases(turns: int, tokens: int) -> list[Case]:
    """`tokens` in one first prompt, or as a fifth at the start and the rest in tool outputs."""
    characters = int(tokens * 3.6)
    start, later = characters // 5, int(characters * 0.8 / (turns - 1) - 250)
    return [
        Case(f"{name}{', streamed' if stream else ''}", turn, first, max(40, later), stream)
        for name, turn, first in ((f"turn 1 of {tokens}", 1, characters), (f"turn {turns}", turns, start))
        for stream in (False, True)
    ]


@contextmanager
def processes() -> Iterator[dict[str, Process]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def started(*arguments: object, **options: object) -> Process:
            process = Process(*arguments, **options)
            stack.callback(process.stop)
            return process

        for name in ("plain", "timed"):
            (folder / name).mkdir()
        upstream = started(StubUpstream)
        yield {
            GATEWAY: started(GatewayTarget, folder / "plain", timed=False),
            TIMED: started(GatewayTarget, folder / "timed", timed=True),
            RELAY: started(RelayTarget, upstream.url),
            RECORDING: started(RecordingRelayTarget, upstream.url, folder),
        }


async def measure(process: Process, case: Case, calls: int, label: str) -> Sample:
    ids = [f"{label}-{index}" for index in range(calls)]
    keys = process.ask("open", ids)
    talks = [Conversation(hash_of(id), case.first_characters, case.later_characters) for id in ids]
    async with aiohttp.ClientSession() as http:
        for key, talk in zip(keys, talks, strict=True):
            for _ in range(case.turn - 1):
                talk.go_on(await send(http, process.url, key, talk.body(stream=False)))
        bodies = [talk.body(stream=case.stream) for talk in talks]
        await asyncio.sleep(0.02)  # what the gateway still does after its last reply is not the next call's
        before, begun = process.ask("read"), time.monotonic()
        for key, body in zip(keys, bodies, strict=True):
            await send(http, process.url, key, body)
        wall_s = time.monotonic() - begun
        await asyncio.sleep(0.02)
        after = process.ask("read")
    stored = process.ask("stored_bytes")[-calls:]
    process.ask("close", ids)
    spent = {name: (after[name] - before.get(name, 0)) / calls for name in after}
    return Sample({**spent, "wall": wall_s * 1e6 / calls}, sum(stored) / calls)


def hash_of(label: str) -> int:
    """The same conversations in every run."""
    return int.from_bytes(label.encode()[-6:]) % 100_003


async def measure_all(rounds: int, calls: int, of: Sequence[Case]) -> dict[tuple[str, str], list[Sample]]:
    samples: dict[tuple[str, str], list[Sample]] = {}
    with processes() as targets:
        for number in range(rounds + 1):
            for case in of:
                for name, process in targets.items():
                    label = f"r{number}-{of.index(case)}"
                    sample = await measure(process, case, calls, label)
                    if number:  # the first round warms everything up
                        samples.setdefault((case.name, name), []).append(sample)
            print(f"round {number} of {rounds}", flush=True)
    return samples


class Row:
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
        yield "gateway, µs of CPU per call", f"{self.spent(GATEWAY):.0f}"
        yield "relay, µs", f"{self.spent(RELAY):.0f}"
        yield "relay that parses and stores, µs", f"{self.spent(RECORDING):.0f}"
        yield "gateway, ms until the reply is whole", f"{self.spent(GATEWAY, 'wall') / 1000:.1f}"
        yield "relay that parses and stores, ms", f"{self.spent(RECORDING, 'wall') / 1000:.1f}"
        yield "gateway / relay", f"{self.ratio(RELAY):.2f}"
        yield "**gateway / relay that stores**", f"**{self.ratio(RECORDING):.2f}**"
        parts = {part: self.spent(TIMED, part) for part in (*PARTS, "engine")}
        for part, spent in parts.items():
            yield f"of the gateway's: {part}", f"{spent:.0f}"
        yield "of the gateway's: HTTP, tasks, threads", f"{self.spent(TIMED) - sum(parts.values()):.0f}"
        yield "tokens rendered per call", f"{self.spent(TIMED, 'rendered'):.0f}"
        yield "bytes stored per call, gateway", f"{self.stored(GATEWAY):.0f}"
        yield "bytes stored per call, relay that stores", f"{self.stored(RECORDING):.0f}"


def report(rows: Sequence[Row]) -> str:
    columns = [dict(row.lines()) for row in rows]
    body = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return table(["", *(row.case.name for row in rows)], body)


def verdict(rows: Sequence[Row]) -> str:
    ratio = max(row.ratio(RECORDING) for row in rows if row.case.turn > 1)
    word = "met" if ratio <= TARGET_RATIO else "missed"
    target = f"Target of at most {TARGET_RATIO:g} x the relay that stores, on later turns"
    return f"{target}: {word} in this run ({ratio:.2f})."


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="after one that warms up; the table has medians")
    parser.add_argument("--calls", type=int, default=10, help="measured calls in each round of each case")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=10_000, help="of the prompts, about")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    options = parser.parse_args()
    of = cases(options.turns, options.tokens)
    samples = await measure_all(options.rounds, options.calls, of)
    rows = [Row(samples, case) for case in of]
    command = f"python benchmarks/gateway.py --rounds {options.rounds} --calls {options.calls} --write"
    text = f"{report(rows)}\n\n{verdict(rows)}\n\n{origin(command)}"
    print(text)
    if options.write:
        write_section("gateway", text)


if __name__ == "__main__":
    asyncio.run(main())
