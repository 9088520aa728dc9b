"""What a contained session of real pi costs with the harness's compiled code, and without it.

    python benchmarks/compiled_code.py [--sessions 40] [--rounds 2]

Sessions of examples/learning in `bubblewrap`, solved by a script instead of a model. The two ways take turns.
Processor time is that of the whole machine, which should have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean

from page import origin, table

from polar.config import cache_dir

LEARNING = Path(__file__).parents[1] / "examples" / "learning"
BUSY = (0, 1, 2, 5, 6)
"""Columns of /proc/stat: user, nice, system, interrupts."""


def machine_seconds() -> float:
    ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(ticks[column]) for column in BUSY) / os.sysconf("SC_CLK_TCK")


def run(tasks: Path) -> float:
    command = (sys.executable, "-c", "from polar.cli.app import main; main()", "run", str(tasks))
    began = machine_seconds()
    subprocess.run(
        (*command, "--config", str(LEARNING / "demonstrations.toml")),
        env={**os.environ, "PYTHONPATH": str(LEARNING)},
        cwd=tasks.parent,
        check=True,
        capture_output=True,
    )
    return machine_seconds() - began


@contextmanager
def emptied(folder: Path) -> Generator[None]:
    """While it holds, sessions find no compiled code."""
    kept = folder.with_name(f".{folder.name}.kept")
    folder.rename(kept)
    folder.mkdir()
    try:
        yield
    finally:
        folder.rmdir()
        kept.rename(folder)


def task_file(folder: Path, count: int) -> Path:
    made = subprocess.run(
        (sys.executable, str(LEARNING / "families.py"), "demonstrated", str(count)),
        check=True,
        capture_output=True,
        text=True,
    )
    path = folder / f"{count}.jsonl"
    rows = [json.loads(line) | {"runtime": "bubblewrap"} for line in made.stdout.splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        few, many = (task_file(Path(name), count) for count in (2, chosen.sessions))
        run(few)  # installs, and makes the compiled code
        start_s = run(few)
        (folder,) = (cache_dir() / "compiled").glob("[!.]*pi-coding-agent*")
        found: dict[str, list[float]] = {"with": [], "without": []}
        for _ in range(chosen.rounds):
            found["with"].append(run(many) - start_s)
            with emptied(folder):
                found["without"].append(run(many) - start_s)
    costs = {way: mean(seconds) / (chosen.sessions - 2) for way, seconds in found.items()}
    rows = [[way, f"{cost * 1000:.0f}", f"{cost / costs['without']:.2f}"] for way, cost in costs.items()]
    print(table(["compiled code", "processor ms, a session", "of without"], rows))
    print(
        f"\n{origin(f'python benchmarks/compiled_code.py --sessions {chosen.sessions} --rounds {chosen.rounds}')}"
    )


if __name__ == "__main__":
    main()
