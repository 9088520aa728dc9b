"""Peak memory of commands that read a task set, for 1,000 and for 100,000 rows, each in a process of its own.

    python benchmarks/task_stream.py [--rows 1000 100000] [--only read parquet swe ls run]

A row has an instruction of about 1 kB. `read` and `parquet` read and check a file, `swe` rows of SWE-bench. `ls`
is `polar tasks ls`. `run` is what `polar run` does with the tasks: choose, check, write them down, lease each
session; the sessions themselves are left out, and their results are not kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from polar.cli.app import app
from polar.cli.task_choice import choice_of
from polar.data.source import TaskFileSource
from polar.data.tasks import read_tasks
from polar.runs.resume import write_tasks
from polar.runs.running import tasks_of
from polar.runs.task_sources import check_sources
from polar.store.paths import RunPaths
from polar.types import Lease, SessionResult, Stage

ROWS = (1_000, 100_000)
WORDS = "Read the report, find the function that is wrong, repair it and run the tests. " * 12


def task_rows(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "task_id": f"task-{number:06}-of-set",
            "instruction": f"Number {number}. {WORDS}",
            "harness": {"name": "shell", "options": {"command": "true"}},
            "metadata": {"repo": f"owner/name-{number % 50}", "number": number},
        }


def swe_rows(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "instance_id": f"owner__name-{number}",
            "repo": f"owner/name-{number % 50}",
            "base_commit": f"{number:040x}",
            "problem_statement": f"Number {number}. {WORDS}",
            "patch": "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-1\n+2\n",
            "test_patch": "diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-1\n+2\n",
            "FAIL_TO_PASS": ["t.py::test_one"],
            "PASS_TO_PASS": [f"t.py::test_{each}" for each in range(20)],
            "image": f"registry.example/owner/name:{number}",
        }


def write_jsonl(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_parquet(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    schema = pa.Table.from_pylist(list(task_rows(1))).schema
    with pq.ParquetWriter(path, schema) as writer:
        while part := list(islice(rows, 10_000)):
            writer.write_table(pa.Table.from_pylist(part, schema))


def read(path: Path) -> int:
    return sum(1 for _ in read_tasks(path))


def ls(path: Path) -> int:
    with tempfile.TemporaryFile() as printed:
        stdout = os.dup(1)
        os.dup2(printed.fileno(), 1)
        app(["tasks", "ls", str(path)], standalone_mode=False)
        sys.stdout.flush()
        os.dup2(stdout, 1)
        printed.seek(0)
        return sum(line.startswith(b"task-") for line in printed)


def ended(lease: Lease) -> SessionResult:
    session = lease.session
    return SessionResult(
        session_id=session.session_id,
        task_id=session.task_id,
        index=session.index,
        attempt=session.attempt,
        stage=Stage.COMPLETED,
    )


def run(path: Path) -> int:
    async def leased() -> int:
        tasks = choice_of(filters=["metadata.repo=owner/*"]).of(tasks_of(path, None))
        await check_sources(tasks)
        with tempfile.TemporaryDirectory() as folder:
            write_tasks(RunPaths.create(Path(folder)), tasks)
        source, count = TaskFileSource(tasks, ignore), 0
        while leases := await source.lease(8):
            count += len(leases)
            for lease in leases:
                await source.report(ended(lease), None)
        return count

    async def ignore(*_: object) -> None: ...

    return asyncio.run(leased())


WAYS: dict[str, tuple[str, Callable[[Path], int]]] = {
    "read": ("jsonl", read),
    "parquet": ("parquet", read),
    "swe": ("toml", read),
    "ls": ("jsonl", ls),
    "run": ("jsonl", run),
}


def write_sets(folder: Path, count: int) -> None:
    write_jsonl(folder / f"{count}.jsonl", task_rows(count))
    write_parquet(folder / f"{count}.parquet", task_rows(count))
    write_jsonl(folder / f"{count}-swe.jsonl", swe_rows(count))
    (folder / f"{count}.toml").write_text(f'[swe]\nrows = "{count}-swe.jsonl"\n')


def peak_mib() -> float:
    """Of this process since it began. `getrusage` would count its parent's, too."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def measure(way: str, path: Path) -> None:
    began = time.monotonic()
    count = WAYS[way][1](path)
    print(json.dumps({"rows": count, "mib": peak_mib(), "s": time.monotonic() - began}))


def measured(way: str, folder: Path, count: int) -> float:
    path = folder / f"{count}.{WAYS[way][0]}"
    command = [sys.executable, __file__, "--measure", way, str(path)]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    assert answer["rows"] == count, f"{way}: {answer['rows']} of {count} rows"
    print(f"{way}, {count:,} rows: {answer['mib']:.0f} MiB, {answer['s']:.1f} s", file=sys.stderr)
    return answer["mib"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--only", choices=list(WAYS), nargs="+", default=list(WAYS))
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure[0], Path(given.measure[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        for count in given.rows:
            write_sets(Path(folder), count)
        print("| | " + " | ".join(f"{count:,} rows" for count in given.rows) + " | ratio |")
        print("|---|" + "---|" * (len(given.rows) + 1))
        for way in given.only:
            peaks = [measured(way, Path(folder), count) for count in given.rows]
            cells = " | ".join(f"{peak:.0f} MiB" for peak in peaks)
            print(f"| `{way}` | {cells} | {peaks[-1] / peaks[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
