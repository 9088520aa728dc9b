"""What commands that serve run on."""

from __future__ import annotations

import subprocess
import sys

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
