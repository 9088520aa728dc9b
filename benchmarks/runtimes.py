"""What a runtime costs: cold start, listener, exec, files, teardown of each runtime; many at once, no leaks.

    python benchmarks/runtimes.py [--rounds 10] [--parallel bubblewrap=100 --parallel docker=20] [--write]

Every runtime that this machine has, with the image it wants, is measured with its default options; the others are
named with what is missing. A round starts a session, opens its listener, runs `true`, puts and gets a file of
10 kB, and stops it, one runtime after another, so that all have the same neighbours on the machine. Ratios are
against `local` in the same run.

Then that many sessions are started (at most 16 starts under way), each runs a command that leaves a child behind,
and all are stopped. What is left is counted: processes, mounts, cgroups, containers, folders, and file descriptors
of the node. `--write` puts the tables into docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from page import origin, table, write_section

from polar import registry
from polar.errors import RuntimeFailure
from polar.runtimes.base import Command, Runtime, SessionFolders
from polar.runtimes.host.processes import OWNER, Family, find, owner
from polar.types import Spec

STEPS = ("start", "listener", "exec", "put and get", "stop")
STARTS_AT_ONCE = 16


@dataclass
class Clock:
    """Milliseconds of each step, by runtime."""

    taken_ms: dict[tuple[str, str], list[float]] = field(default_factory=dict[tuple[str, str], list[float]])

    async def time(self, runtime: str, step: str, work: Awaitable[object]) -> object:
        began = time.perf_counter()
        result = await work
        self.taken_ms.setdefault((runtime, step), []).append((time.perf_counter() - began) * 1000)
        return result

    def median_ms(self, runtime: str, step: str) -> float:
        return median(self.taken_ms[runtime, step])


async def one_round(name: str, clock: Clock, folder: Path) -> None:
    runtime: Runtime = registry.make("runtime", Spec(name=name))
    with ExitStack() as listeners:
        try:
            await clock.time(
                name, "start", runtime.start(SessionFolders("bench", folder / "place", folder / "logs"))
            )
            listener = await clock.time(name, "listener", runtime.listener())
            if listener is not None:
                listeners.enter_context(listener)  # pyright: ignore[reportArgumentType]
            finished = await clock.time(name, "exec", runtime.exec(Command(argv=("true",))))
            assert finished.exit_code == 0, finished  # pyright: ignore[reportAttributeAccessIssue]
            await clock.time(name, "put and get", put_and_get(runtime))
        finally:
            await clock.time(name, "stop", runtime.stop())


async def put_and_get(runtime: Runtime) -> None:
    await runtime.put("file.bin", b"x" * 10_000)
    assert len(await runtime.get("file.bin")) == 10_000


def leftovers(folder: Path) -> dict[str, int]:
    """What there is now that sessions may leave behind."""
    marked = find(Family(f"{OWNER}={owner()}\0".encode(), frozenset()))
    cgroups = [path for path in Path("/sys/fs/cgroup").glob("*/polar/*/*") if path.is_dir()]
    return {
        "processes": len(marked),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "cgroups": len(cgroups),
        "containers": len(containers()),
        "folders": len(list(folder.glob("*/place"))),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def containers() -> list[str]:
    if shutil.which("docker") is None:
        return []
    listing = ["docker", "ps", "--all", "--quiet", "--filter", f"label=polar.owner={owner()}"]
    return subprocess.run(listing, capture_output=True, text=True, check=False).stdout.split()


@dataclass(frozen=True)
class Crowd:
    runtime: str
    sessions: int
    start_s: float
    exec_s: float
    stop_s: float
    failed: int
    leaked: dict[str, int]

    @property
    def row(self) -> list[str]:
        leaks = ", ".join(f"{count} {what}" for what, count in self.leaked.items()) or "nothing"
        seconds = [f"{value:.1f}" for value in (self.start_s, self.exec_s, self.stop_s)]
        return [self.runtime, str(self.sessions), *seconds, str(self.failed), leaks]


async def crowd(name: str, sessions: int, folder: Path) -> Crowd:
    before = leftovers(folder)
    runtimes: list[Runtime] = [registry.make("runtime", Spec(name=name)) for _ in range(sessions)]
    gate = asyncio.Semaphore(STARTS_AT_ONCE)
    listeners = ExitStack()

    async def start(number: int, runtime: Runtime) -> None:
        async with gate:
            base = folder / f"{name}-{number}"
            await runtime.start(SessionFolders(f"bench-{number}", base / "place", base / "logs"))
            if (listener := await runtime.listener()) is not None:
                listeners.enter_context(listener)

    async def use(_: int, runtime: Runtime) -> None:
        finished = await runtime.exec(Command(argv=("sh", "-c", "sleep 600 & echo here > file")))
        assert finished.exit_code == 0 and await runtime.get("file") == b"here\n", finished

    async def end(_: int, runtime: Runtime) -> None:
        await runtime.stop()

    with listeners:
        start_s, failed_starts = await timed(runtimes, start)
        exec_s, failed_uses = await timed(runtimes, use)
        stop_s, failed_stops = await timed(runtimes, end)
    after = leftovers(folder)
    leaked = {what: after[what] - before[what] for what in after if after[what] > before[what]}
    return Crowd(name, sessions, start_s, exec_s, stop_s, failed_starts + failed_uses + failed_stops, leaked)


async def timed(runtimes: Sequence[Runtime], work: Callable[[int, Runtime], Awaitable[None]]) -> tuple[float, int]:
    began = time.perf_counter()
    outcomes = await asyncio.gather(*(work(n, one) for n, one in enumerate(runtimes)), return_exceptions=True)
    failures = [outcome for outcome in outcomes if outcome is not None]
    for failure in failures[:3]:
        print(f"failed: {failure!r}")
    return time.perf_counter() - began, len(failures)


async def usable() -> tuple[list[str], dict[str, str]]:
    found, missing = list[str](), dict[str, str]()
    for name in ["local", *sorted(set(registry.BUILT_IN["runtime"]) - {"local"})]:
        try:
            runtime: type[Runtime] = registry.find("runtime", name)
            reason = await runtime.lacking()
        except Exception as error:
            reason = str(error)
        if reason:
            missing[name] = reason
        else:
            found.append(name)
    return found, missing


def latency_table(names: list[str], clock: Clock) -> str:
    rows: list[list[str]] = []
    for name in names:
        cells = [f"{clock.median_ms(name, step):.1f}" for step in STEPS]
        ratio = clock.median_ms(name, "start") / clock.median_ms("local", "start")
        exec_ratio = clock.median_ms(name, "exec") / clock.median_ms("local", "exec")
        rows.append([name, *cells, f"{ratio:.1f}", f"{exec_ratio:.1f}"])
    head = ["runtime", *(f"{step}, ms" for step in STEPS), "start / local", "exec / local"]
    return table(head, rows)


async def measure(rounds: int, parallel: dict[str, int], folder: Path) -> str:
    found, missing = await usable()
    names: list[str] = []
    for name in found:
        # The round before the first warms caches and shows that the runtime starts: its image may not be built.
        try:
            await one_round(name, Clock(), folder / f"{name}-0")
            names.append(name)
        except RuntimeFailure as failure:
            missing[name] = str(failure)
    clock = Clock()
    for number in range(1, rounds + 1):
        for name in names:
            await one_round(name, clock, folder / f"{name}-{number}")
    parts = [latency_table(names, clock)]
    parts += [f"Not measured here: {name} ({reason})." for name, reason in missing.items()]
    crowds = [await crowd(name, count, folder) for name, count in parallel.items() if name in names]
    if crowds:
        head = ["runtime", "sessions", "start all, s", "exec in all, s", "stop all, s", "failed", "left behind"]
        parts.append(table(head, [one.row for one in crowds]))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--parallel", action="append", default=[], metavar="RUNTIME=COUNT")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    given = parser.parse_args()
    parallel = {name: int(count) for name, _, count in (entry.partition("=") for entry in given.parallel)}
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as scratch:
        text = asyncio.run(measure(given.rounds, parallel, Path(scratch)))
    many = "".join(f" --parallel {name}={count}" for name, count in parallel.items())
    text += "\n\n" + origin(f"python benchmarks/runtimes.py --rounds {given.rounds}{many}")
    print(text)
    if given.write:
        write_section("runtimes", text)


if __name__ == "__main__":
    main()
