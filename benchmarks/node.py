"""Sessions a second of real pi through a node, against the same pi processes started bare, as many at once.

    python benchmarks/node.py [--at-once 1 2 4 8] [--waves 4] [--latency-s 0.2] [--write] [--json FILE]

Each session is pi (the pinned package, by the pinned Node) with three model calls: two tool calls and a last
text. Through the node it is a whole session: `local` runtime, pipeline, journal, gateway, the `vllm` engine,
builder and evaluator. Bare it is the pi process alone, its files written by the same harness plug-in, at the
chat route of the same stub engine, which gives the same replies after the same latency. Node, bare runner and
stub have a process each. pi notes its own processor time when it ends; the node's is read from its process,
without the supervisors of its commands, which end unseen by it. A ticker in the node's loop shows its longest
stall, one in the bare runner's shows the machine's. Sizes go up to four for each core, 64 at most.

Without network the cache (`POLAR_CACHE`) must hold what is fetched otherwise: the packages of pi and Node under
`npm/` and the GGUF file of SmolLM2 under `weights/`, by the names of `harnesses/programs/install.py` and of
`store/weights.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node_targets import CALLS, REPLIES, Order, PiAlone, PiNode, Run, plain
from page import goal, origin, table, write_json, write_section
from stub_server import Pace, StubEngine
from target_process import Process

from polar.harnesses.pi import Pi, PiOptions
from polar.harnesses.programs.install import install

SIZES = (1, 2, 4, 8, 16, 32, 64)
LEAST_RATIO = 0.85
FALL_OFF = 0.9
"""What a larger size must reach of the best smaller one."""
CPU_SHARE = 0.1


@dataclass(frozen=True)
class Pair:
    """One size: through the node, and bare."""

    node: Run
    bare: Run

    @property
    def at_once(self) -> int:
        return self.node.order.at_once

    @property
    def ratio(self) -> float:
        return self.node.per_s / self.bare.per_s

    @property
    def node_cpu_s(self) -> float:
        """Of a session."""
        return self.node.own_cpu_s / self.node.order.sessions

    @property
    def pi_cpu_s(self) -> float:
        """Of a session, bare, with what its tools take."""
        return self.bare.children_cpu_s / self.bare.order.sessions

    def row(self) -> list[str]:
        return [
            str(self.at_once),
            str(self.node.order.sessions),
            f"{self.node.per_s:.2f}",
            f"{self.bare.per_s:.2f}",
            f"**{self.ratio:.2f}**",
            f"{self.node_cpu_s * 1000:.0f}",
            f"{self.node_cpu_s * 1000 / CALLS:.1f}",
            f"{self.pi_cpu_s * 1000:.0f}",
            f"{self.node.longest_stall_s * 1000:.0f}",
            f"{self.bare.longest_stall_s * 1000:.0f}",
        ]


HEAD = (
    "at once",
    "sessions",
    "sessions/s, node",
    "sessions/s, bare",
    "node / bare",
    "node's CPU ms, a session",
    "node's CPU ms, a call",
    "pi's CPU ms, a session",
    "longest stall of the node's loop, ms",
    "of the bare runner's, ms",
)


def default_sizes() -> list[int]:
    cores = len(os.sched_getaffinity(0))
    return [size for size in SIZES if size <= max(2, 4 * cores)]


async def measure(sizes: Sequence[int], waves: int, latency_s: float) -> list[Pair]:
    installed = await install(Pi(PiOptions()).requirements())
    with tempfile.TemporaryDirectory() as folder:
        stub = Process(StubEngine, REPLIES, Pace(8, latency_s=latency_s))
        node = Process(PiNode, Path(folder) / "node", stub.url, installed)
        bare = Process(PiAlone, Path(folder) / "bare", stub.url, installed)
        try:
            checked(bare.ask("run", Order(1, 1)))  # warms the disk's cache
            return [_pair(node, bare, Order(size, waves * size)) for size in sizes]
        finally:
            for process in (bare, node, stub):
                process.stop()


def _pair(node: Process, bare: Process, order: Order) -> Pair:
    pair = Pair(node=checked(node.ask("run", order)), bare=checked(bare.ask("run", order)))
    print(f"{order.at_once} at once: {pair.node.per_s:.2f} sessions/s, bare {pair.bare.per_s:.2f}", flush=True)
    return pair


def checked(run: Run) -> Run:
    if run.failures:
        raise SystemExit(f"{len(run.failures)} of {run.order.sessions} sessions went wrong: {run.failures[0]}")
    return run


def goals(pairs: Sequence[Pair]) -> str:
    ratio = min(pair.ratio for pair in pairs)
    share = max(pair.node_cpu_s / pair.pi_cpu_s for pair in pairs)
    kept = min((_kept(pairs, index) for index in range(1, len(pairs))), default=1.0)
    return "\n".join(
        [
            goal(f"at least {LEAST_RATIO:g} x bare at every size", ratio >= LEAST_RATIO, f"least {ratio:.2f}"),
            goal(
                f"no fall-off: each size has at least {FALL_OFF:g} of the best smaller one",
                kept >= FALL_OFF,
                f"least {kept:.2f}",
            ),
            goal(
                f"node CPU per session below {CPU_SHARE:g} of pi's own",
                share < CPU_SHARE,
                f"most {share:.3f}",
            ),
        ]
    )


def _kept(pairs: Sequence[Pair], index: int) -> float:
    return pairs[index].node.per_s / max(pair.node.per_s for pair in pairs[:index])


def json_of(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    return [
        {
            "at_once": pair.at_once,
            "ratio": pair.ratio,
            "node": plain(pair.node),
            "bare": plain(pair.bare),
        }
        for pair in pairs
    ]


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--at-once", type=int, nargs="+", default=default_sizes(), help="sizes, smallest first")
    parser.add_argument("--waves", type=int, default=4, help="sessions of a size, divided by it")
    parser.add_argument("--latency-s", type=float, default=0.2, help="of each model call")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    pairs = await measure(options.at_once, options.waves, options.latency_s)
    sizes = " ".join(map(str, options.at_once))
    command = f"python benchmarks/node.py --at-once {sizes} --waves {options.waves}"
    cores = f"{len(os.sched_getaffinity(0))} cores."
    text = f"{table(HEAD, [pair.row() for pair in pairs])}\n\n{goals(pairs)}\n\n{origin(command)} {cores}"
    print(text)
    write_json(options.json, command, json_of(pairs))
    if options.write:
        write_section("node", text)


if __name__ == "__main__":
    asyncio.run(main())
