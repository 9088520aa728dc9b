"""What commands that serve run on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SERVED = """
import asyncio, gc, resource
from polar.runs.event_loop import run_served

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, min(hard, {hard})))

async def main():
    assert gc.get_freeze_count() > 10_000, "collections look at what was imported"
    return type(asyncio.get_running_loop()).__module__

print(run_served(main()), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("hard", [1_000, 4_000])
def test_they_have_uvloop_and_as_many_open_files_as_the_machine_allows(hard: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVED.format(hard=hard)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["uvloop", str(hard), str(hard)]


INHERITS = """
import asyncio
from polar.runs.event_loop import run_served

async def main():
    child = await asyncio.create_subprocess_exec("sh", "-c", "ls /proc/self/fd")
    await child.wait()

run_served(main())
"""


def test_their_children_do_not_get_what_they_themselves_inherited(tmp_path: Path) -> None:
    """Such as a lock that a shell holds: uvloop closes nothing, and a child may be a session."""
    with (tmp_path / "of the shell").open("w") as file:
        own = os.dup2(file.fileno(), 222)
    try:
        done = subprocess.run(
            [sys.executable, "-c", INHERITS], capture_output=True, text=True, check=True, pass_fds=(own,)
        )
    finally:
        os.close(own)
    assert str(own) not in done.stdout.split()
