"""A killed node leaves its instances running; the next node ends them, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from apptainer_bench import alive_of, running, sh

from polar.runtimes.apptainer.runtime import ApptainerOptions, ApptainerRuntime
from polar.runtimes.base import SessionFolders
from polar.runtimes.host.cgroups import MOUNT
from waiting import until

pytestmark = pytest.mark.check

NODE = """
import asyncio, sys
from pathlib import Path
from polar.runtimes.apptainer.runtime import ApptainerOptions, ApptainerRuntime
from polar.runtimes.base import Command, SessionFolders

async def node(image, session_id, root, logs, mark):
    runtime = ApptainerRuntime(ApptainerOptions(image=image))
    await runtime.start(SessionFolders(session_id, Path(root), Path(logs)))
    await runtime.exec(Command(("sh", "-c", f"setsid sleep {mark} >/dev/null 2>&1 & echo old >answer.txt")))
    print("ready", flush=True)
    await runtime.exec(Command(("sleep", mark)))

asyncio.run(node(*sys.argv[1:]))
"""


@contextmanager
def node(image: Path, folders: SessionFolders, mark: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that runs a session."""
    argv = [sys.executable, "-c", NODE, str(image), folders.session_id, str(folders.root), str(folders.logs), mark]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def groups_of(folders: SessionFolders) -> list[Path]:
    return list(MOUNT.glob(f"*/polar/*/{folders.session_id}-*"))


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("kind", ["image", "image_file"])
async def test_what_a_killed_node_left_is_ended(
    request: pytest.FixtureRequest, folders: SessionFolders, kind: str
) -> None:
    image: Path = request.getfixturevalue(kind)
    mark = f"6{os.getpid()}"
    with node(image, folders, mark) as process:
        await until(lambda: running(f"sleep {mark}"))
        await ApptainerRuntime.sweep()
        assert running(f"sleep {mark}"), "it belongs to a node that lives"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert alive_of(folders)

        assert await ApptainerRuntime.sweep() >= 1

        assert not running(f"sleep {mark}")
        assert not alive_of(folders)
        assert not groups_of(folders)
        assert not [line for line in running("squashfuse") if str(image) in line]


async def test_a_start_clears_what_a_dead_node_left_of_the_same_place(
    image: Path, folders: SessionFolders, options: ApptainerOptions
) -> None:
    mark = f"7{os.getpid()}"
    with node(image, folders, mark) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()

        fresh = ApptainerRuntime(options)
        await fresh.start(folders)

        assert not running(f"sleep {mark}")
        assert (await fresh.exec(sh("ls"))).stdout_tail == ""
        await fresh.stop()
    assert not alive_of(folders)
    await ApptainerRuntime.sweep()
    assert not groups_of(folders)


async def test_what_a_living_node_owns_is_left_alone(runtime: ApptainerRuntime, folders: SessionFolders) -> None:
    await ApptainerRuntime.sweep()
    assert alive_of(folders)
    assert (await runtime.exec(sh("echo fine"))).stdout_tail == "fine\n"
