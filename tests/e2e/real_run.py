"""`polar run` as a user would type it, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from polar.store.journal import Journal
from polar.types import Call


def polar_run(folder: Path, tasks: Path, *flags: str) -> dict[str, Any]:
    """What `polar run --json` prints, and the folder of the run as `root`."""
    command = [sys.executable, "-c", "from polar.cli.app import main; main()", "run", str(tasks), *flags, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    value["root"] = folder / value["path"]
    return value


def calls_of(run: dict[str, Any], session_id: str) -> list[Call]:
    async def read() -> list[Call]:
        async with await Journal.open(run["root"] / "journal.db", read_only=True) as journal:
            return await journal.calls(session_id)

    return asyncio.run(read())
