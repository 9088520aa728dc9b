"""A day in an hour: sessions with traces of real size through one server with retention on.

    python benchmarks/soak.py [--sessions 2000] [--minutes 60] [--database URL] [--blobs STORE] [--write]
    python benchmarks/soak.py --sessions 20000        # a day's work; half an hour to an hour on two cores

The server is a real `polar server` process. Each node is a task in this process that speaks to it over HTTP as a
gateway node does: it leases, beats, and uploads stored sessions (`session_material.py`: 30 calls, 20,000 to 60,000
tokens, packed as a node packs them). A trainer reads results by cursor and the traces of each; another client asks
for what a dashboard shows. Retention keeps a result for ten minutes after it was fetched, and no longer. `--rate`
sessions are submitted a second at most: below what the machine can do, so that no queue grows.

It records the server's memory (RSS), its processor time, the size of database and blob folder on disk, and how
long lease, heartbeat, upload, cursor, traces and lists take. What has to be flat is compared between the last
tenth and the median of the five before it, so that a disturbance of one does not count; the first four fill what
retention keeps. `--write` puts the table into docs/performance.md, `--json FILE` keeps every tenth.
With `--database-pid PID` the processor time of a PostgreSQL server on this machine is counted too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from page import origin, table, write_json, write_section
from session_material import a_session

from polar import registry
from polar.builders.base import Builder
from polar.client import PolarClient, Retry, ServerError
from polar.node.uplink import LeaseRefused, Uplink, upload_of
from polar.types import (
    PROTOCOL,
    Heartbeat,
    HeldSession,
    Lease,
    LeaseRequest,
    NodeAbilities,
    Registration,
    Score,
    Session,
    SessionResult,
    Spec,
    Stage,
    TaskRequest,
    TrajectoryStatistics,
)
from polar.types.packed import compressed, decompressed

T = TypeVar("T")
SAMPLES = 8
"""Of each task, which is a group."""
CALLS = 30
TOKENS = (20_000, 30_000, 40_000, 60_000)
TENTHS = 10
BEAT_S = 3.0
BACKLOG = 200
"""Queued sessions; a trainer submits more when fewer are left."""
LATENCIES = ("lease", "heartbeat", "upload", "cursor", "traces", "listing", "overview", "group")
ABLE = NodeAbilities(protocol=PROTOCOL, runtimes=("local", "bubblewrap"), harnesses=("pi",))
STEADY, LAST = range(4, 9), 9
"""The tenths that are compared: the median of some with the last. When the first of them begins, retention must be
at work."""
HEAD = ("", "fifth to ninth tenth (median)", "last tenth", "ratio")


@dataclass
class Look:
    """The server at one moment."""

    at: float
    done: int
    rss_mb: float
    cpu_s: float
    database_cpu_s: float
    """Of a database that is a process of its own."""
    database_mb: float
    blobs_mb: float


@dataclass
class Course:
    """What is measured, by the number of sessions that are done."""

    sessions: int
    until: float
    """When to stop, if not all are done by then; of the steady clock."""
    done: int = 0
    lost: int = 0
    """Uploads that came after their lease."""
    looks: list[Look] = field(default_factory=list[Look])
    times: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))
    """So many traces are read at once."""
    newest: str = ""
    """The last group that was submitted."""
    failures: list[str] = field(default_factory=list[str])

    @property
    def over(self) -> bool:
        return self.done >= self.sessions or time.monotonic() > self.until

    async def timed(self, what: str, work: Awaitable[T]) -> T:
        begun = time.perf_counter()
        result = await work
        self.times[what].append((self.done, time.perf_counter() - begun))
        return result

    def tenth(self, number: int) -> range:
        size = self.done / TENTHS
        return range(int(number * size), int((number + 1) * size))

    def milliseconds(self, what: str, number: int) -> list[float]:
        return sorted(1000 * taken for done, taken in self.times[what] if done in self.tenth(number))

    def cpu_ms(self, what: str, number: int) -> float:
        """For one session: the one time that does not depend on what else the machine does."""
        found = [look for look in self.looks if look.done in self.tenth(number)]
        done = found[-1].done - found[0].done if found else 0
        return 1000 * (getattr(found[-1], what) - getattr(found[0], what)) / done if done else float("nan")

    def of_server(self, what: str, number: int) -> float:
        found = [getattr(look, what) for look in self.looks if look.done in self.tenth(number)]
        return median(found) if found else float("nan")


def task_name(number: int) -> str:
    """Always as long: a stored upload gets its names by replacing bytes."""
    return f"soak-{number:07}"


STAND_IN = task_name(9_999_999)


@dataclass(frozen=True)
class Stored:
    """An upload, not compressed, of the first sample of a task that does not exist."""

    content: bytes

    def blob(self, lease: Lease) -> bytes:
        session = lease.session
        assert session.attempt == 1, f"{session.session_id} runs again: its lease was lost"
        old_index, index = b'"index": 0', f'"index": {session.index}'.encode()
        content = self.content.replace(f"{STAND_IN}-0".encode(), session.session_id.encode())
        return compressed(
            content.replace(STAND_IN.encode(), session.task_id.encode()).replace(old_index, index, 1)
        )


def stored_sessions() -> list[Stored]:
    builder: Builder = registry.make("builder", Spec(name="prefix_merging"))
    made: list[Stored] = []
    for seed, tokens in enumerate(TOKENS):
        name = f"{STAND_IN}-0"
        calls = a_session(name, CALLS, tokens, seed=seed, branch_every=10)
        trajectory = builder.build(name, calls)
        result = SessionResult(
            session_id=name,
            task_id=STAND_IN,
            index=0,
            attempt=1,
            stage=Stage.COMPLETED,
            score=Score(reward=float(seed % 2)),
            statistics=TrajectoryStatistics.model_validate(trajectory.statistics),
            stage_s={"INIT": 2.0, "RUNNING": 300.0, "POSTRUN": 5.0},
        )
        made.append(Stored(decompressed(upload_of(result, trajectory, calls))))
    return made


class ReplayingNode:
    def __init__(self, url: str, stored: list[Stored], course: Course, given: argparse.Namespace) -> None:
        self._url = url
        self._stored = stored
        self._course = course
        self._slots: int = given.slots
        self._hold_s: float = given.hold_s
        self._held: dict[str, Session] = {}
        self._freed = asyncio.Event()

    async def run(self) -> None:
        registration = Registration(name=f"replay-{id(self):x}", slots=self._slots, abilities=ABLE)
        async with Uplink(self._url, "node") as uplink, asyncio.TaskGroup() as under_way:
            await uplink.register(registration)
            beating = under_way.create_task(self._beat(uplink))
            while not self._course.over:
                if len(self._held) == self._slots:
                    self._freed.clear()
                    await self._freed.wait()
                    continue
                for lease in await self._leases(uplink):
                    self._held[lease.session.session_id] = lease.session
                    under_way.create_task(self._finish(uplink, lease))
            beating.cancel()

    async def _leases(self, uplink: Uplink) -> Sequence[Lease]:
        """Only the request that does not wait for work is timed."""
        room = self._slots - len(self._held)
        found = await self._course.timed("lease", uplink.lease(LeaseRequest(room=room, wait_s=0)))
        return found.leases or (await uplink.lease(LeaseRequest(room=room, wait_s=2.0))).leases

    async def _beat(self, uplink: Uplink) -> None:
        while True:
            held = tuple(
                HeldSession(session_id=each.session_id, attempt=each.attempt, stage=Stage.RUNNING)
                for each in self._held.values()
            )
            await self._course.timed("heartbeat", uplink.heartbeat(Heartbeat(sessions=held)))
            await asyncio.sleep(BEAT_S)

    async def _finish(self, uplink: Uplink, lease: Lease) -> None:
        name, until = lease.session.session_id, time.monotonic() + self._hold_s
        while time.monotonic() < until and not self._course.over:  # noqa: ASYNC110 - two conditions
            await asyncio.sleep(min(1.0, self._hold_s))
        stored = self._stored[secrets.randbelow(len(self._stored))]
        blob = await asyncio.to_thread(stored.blob, lease)
        try:
            await self._course.timed("upload", uplink.upload(name, lease.session.attempt, blob))
            self._course.done += 1
        except LeaseRefused:  # it runs again
            self._course.lost += 1
        del self._held[name]
        self._freed.set()


async def submit(client: PolarClient, course: Course, given: argparse.Namespace) -> None:
    """Keeps a backlog, and no more than `--rate` a second."""
    submitted, begun = 0, time.monotonic()
    most = BACKLOG + given.nodes * given.slots
    while submitted < course.sessions and not course.over:
        due = given.rate * (time.monotonic() - begun) + SAMPLES
        if submitted - course.done >= most or submitted >= due:
            await asyncio.sleep(0.05)
            continue
        count = min(SAMPLES, course.sessions - submitted)
        task = {"instruction": "x" * 2000, "num_samples": count, "harness": "pi"}
        await client.submit(TaskRequest.model_validate({"task_id": task_name(submitted), **task}))
        course.newest = task_name(submitted)
        submitted += count


async def train(client: PolarClient, course: Course) -> None:
    """Reads every result once, in order, and the traces of each."""
    cursor = seen = 0
    while not course.over or seen < course.done:
        page = await course.timed("cursor", client.result_page(after=cursor, limit=100))
        if not page.results:
            await asyncio.sleep(0.2)
        await asyncio.gather(*(read_traces(client, course, entry.result.session_id) for entry in page.results))
        seen += len(page.results)
        cursor = page.cursor


async def read_traces(client: PolarClient, course: Course, session_id: str) -> None:
    async with course.reading:
        try:
            await course.timed("traces", client.trajectory(session_id))
        except ServerError as error:
            course.failures.append(f"{session_id}: {error}")


async def look_around(client: PolarClient, course: Course) -> None:
    """What a person with a dashboard asks for, each second."""
    while not course.over:
        await asyncio.sleep(1.0)
        await course.timed("listing", client.session_list(limit=50))
        await course.timed("overview", client.overview())
        if course.newest:
            await course.timed("group", client.group(course.newest))


async def watch(pid: int, database_pid: int | None, folder: Path, course: Course) -> None:
    while True:
        course.looks.append(await asyncio.to_thread(look_at, pid, database_pid, folder, course.done))
        await asyncio.sleep(1.0)


def cpu_s_of(pid: int, *, with_children: bool = False) -> float:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if with_children else []
    total = 0.0
    for each in (pid, *map(int, children)):
        try:
            ticks = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(map(int, ticks[11 : 15 if with_children else 13])) / os.sysconf("SC_CLK_TCK")
    return total


def look_at(pid: int, database_pid: int | None, folder: Path, done: int) -> Look:
    status = Path(f"/proc/{pid}/status").read_text()
    rss_kb = int(status.split("VmRSS:")[1].split()[0])
    database = sum(path.stat().st_size for path in folder.glob("server.db*") if path.is_file())
    blobs = 0
    for parent, _, names in os.walk(folder / "server.db.blobs"):
        for name in names:
            try:
                blobs += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    database_cpu_s = 0.0 if database_pid is None else cpu_s_of(database_pid, with_children=True)
    return Look(time.time(), done, rss_kb / 1000, cpu_s_of(pid), database_cpu_s, database / 1e6, blobs / 1e6)


@asynccontextmanager
async def a_server(folder: Path, given: argparse.Namespace, keep_s: float) -> AsyncGenerator[tuple[str, int]]:
    days = keep_s / 86400
    lines = [
        "[server]",
        f'database = "{given.database or f"sqlite:///{folder}/server.db"}"',
        *([f'blobs = "{given.blobs}"'] if given.blobs else []),
        "[server.retention]",
        f"results_days = {days:.9f}",
        f"events_days = {days:.9f}",
    ]
    (folder / "polar.toml").write_text("\n".join(lines))
    environment = {**os.environ, "POLAR_CONTROL_TOKEN": "control", "POLAR_NODE_TOKEN": "node"}
    code = "from polar.cli.app import main; main()"
    address = folder / "address" / "url"
    address.parent.mkdir()
    arguments = ["server", "--port", "0", "--config", str(folder / "polar.toml"), "--address-file", str(address)]
    with (folder / "server.log").open("wb") as log:
        command = [sys.executable, "-c", code, *arguments, "--log-level", "warning"]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)  # noqa: ASYNC220
    try:
        async with asyncio.timeout(120):
            while not address.exists():
                if process.poll() is not None:
                    raise SystemExit((folder / "server.log").read_text())
                await asyncio.sleep(0.1)
        yield address.read_text(), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        sys.stderr.write((folder / "server.log").read_text()[-2000:])


async def soak(given: argparse.Namespace, folder: Path) -> tuple[Course, float]:
    stored = stored_sessions()
    begun = time.monotonic()
    course = Course(given.sessions, begun + 60 * given.minutes)
    async with a_server(folder, given, given.keep_s) as (url, pid):
        async with PolarClient(url, token="control", retry=Retry(total_s=60)) as client:
            watching = asyncio.create_task(watch(pid, given.database_pid, folder, course))
            telling = asyncio.create_task(tell(course))
            async with asyncio.TaskGroup() as group:
                for _ in range(given.nodes):
                    group.create_task(ReplayingNode(url, stored, course, given).run())
                group.create_task(submit(client, course, given))
                group.create_task(train(client, course))
                group.create_task(look_around(client, course))
            for task in (watching, telling):
                task.cancel()
    return course, time.monotonic() - begun


async def tell(course: Course) -> None:
    while True:
        await asyncio.sleep(30)
        last = course.looks[-1]
        sys.stdout.write(
            f"{course.done:6} done  {last.rss_mb:6.0f} MB  cpu {last.cpu_s:6.0f} s  "
            f"database {last.database_mb:6.0f} MB  blobs {last.blobs_mb:7.0f} MB\n"
        )
        sys.stdout.flush()


def figures(course: Course, number: int) -> dict[str, tuple[float, str]]:
    """What is known of one tenth, with its unit."""
    known: dict[str, tuple[float, str]] = {}
    for name, what in (
        ("memory (RSS)", "rss_mb"),
        ("database on disk", "database_mb"),
        ("blobs on disk", "blobs_mb"),
    ):
        known[name] = course.of_server(what, number), "MB"
    known["processor time of a session"] = course.cpu_ms("cpu_s", number), "ms"
    if course.looks[-1].database_cpu_s:
        known["the same of the database"] = course.cpu_ms("database_cpu_s", number), "ms"
    for what in LATENCIES:
        if times := course.milliseconds(what, number):
            for share in (50, 99):
                known[f"{what}, p{share}"] = times[min(len(times) - 1, len(times) * share // 100)], "ms"
    return known


def rows_of(tenths: Sequence[dict[str, tuple[float, str]]]) -> list[list[str]]:
    rows: list[list[str]] = []
    for name, (after, unit) in tenths[LAST].items():
        steady = [tenths[number][name][0] for number in STEADY if name in tenths[number]]
        before = median(steady) if steady else float("nan")
        ratio = f"{after / before:.2f}" if before else "-"
        rows.append([name, f"{before:,.1f} {unit}", f"{after:,.1f} {unit}", ratio])
    return rows


def costs(course: Course, seconds: float) -> str:
    """For a plan: what one session costs the server, and how busy it was in the end."""
    cpu_ms = 1000 * course.looks[-1].cpu_s / course.done
    late = [look for look in course.looks if look.done in course.tenth(LAST)]
    cores = (late[-1].cpu_s - late[0].cpu_s) / (late[-1].at - late[0].at) if len(late) > 1 else float("nan")
    most = max(look.rss_mb for look in course.looks)
    return (
        f"{course.done:,} sessions in {seconds / 60:.0f} minutes ({course.done / seconds:.1f} a second), "
        f"{len(course.failures)} unread, {course.lost} run twice. The server took {cpu_ms:.0f} ms of processor "
        f"time for each session, requests of nodes and trainer included, and {cores:.2f} of a processor in the "
        f"last tenth; {most:.0f} MB of memory at most."
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=24 * 60, help="stop after so long")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--slots", type=int, default=4, help="sessions of a node at once")
    parser.add_argument("--hold-s", type=float, default=0.0, help="how long a node has a session")
    parser.add_argument("--rate", type=float, default=8.0, help="sessions submitted a second, at most")
    parser.add_argument("--keep-s", type=float, default=60.0, help="retention, if that is more than ten minutes")
    parser.add_argument("--database", help="default: SQLite in a temporary folder")
    parser.add_argument("--database-pid", type=int, help="process of that database's server on this machine")
    parser.add_argument("--blobs", help="as server.blobs; default: a folder beside the database")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        course, seconds = await soak(given, Path(folder))
    tenths = [figures(course, number) for number in range(TENTHS)]
    made, spoken = table(HEAD, rows_of(tenths)), costs(course, seconds)
    print(f"{made}\n\n{spoken}")
    for failure in course.failures[:5]:
        print(failure)
    command = f"python benchmarks/soak.py {' '.join(sys.argv[1:])}"
    if given.write:
        write_section("soak", f"{made}\n\n{spoken}\n\n{origin(command)}")
    results: dict[str, Any] = {"tenths": tenths, "looks": [vars(each) for each in course.looks]}
    write_json(given.json, command, results)


if __name__ == "__main__":
    asyncio.run(main())
