"""Containers of dead nodes, starts that fail or are cancelled, and many at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest
from docker_machine import StartDocker, containers, sh

from polar.errors import RuntimeFailure
from polar.registry import make
from polar.runtimes.base import Command, Runtime, SessionFolders
from polar.runtimes.docker.options import DockerOptions
from polar.runtimes.docker.runtime import DockerRuntime
from polar.types import Spec

pytestmark = pytest.mark.check

NODE = """
import asyncio, sys
from pathlib import Path
from polar.runtimes.base import Command, SessionFolders
from polar.runtimes.docker.runtime import DockerRuntime
from polar.runtimes.docker.options import DockerOptions

async def main(image, session, folder):
    runtime = DockerRuntime(DockerOptions(image=image))
    await runtime.start(SessionFolders(session, Path(folder) / "root", Path(folder) / "logs"))
    await runtime.exec(Command(("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &")))
    print("ready", flush=True)
    await runtime.exec(Command(("sleep", "1000")))

asyncio.run(main(*sys.argv[1:]))
"""


def folders_in(folder: Path) -> SessionFolders:
    return SessionFolders(f"s-{uuid.uuid4().hex}", folder / "root", folder / "logs")


async def test_what_a_killed_node_leaves_is_swept_and_nothing_else(
    start_docker: StartDocker, docker_image: str, tmp_path: Path
) -> None:
    living = await start_docker()
    session = f"s-{uuid.uuid4().hex}"
    node = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", NODE, docker_image, session, str(tmp_path / "node")),
        stdout=asyncio.subprocess.PIPE,
    )
    assert node.stdout is not None
    assert await node.stdout.readline() == b"ready\n"

    await DockerRuntime.sweep()
    assert len(await containers(session=session)) == 1

    os.kill(node.pid, signal.SIGKILL)
    await node.wait()
    assert await DockerRuntime.sweep() >= 1
    assert await containers(session=session) == []
    assert (await living.exec(sh("echo alive"))).stdout_tail == "alive\n"


async def test_a_start_clears_what_a_dead_node_left_of_the_same_place(docker_image: str, tmp_path: Path) -> None:
    folders, options = folders_in(tmp_path), DockerOptions(image=docker_image)
    dead, fresh = DockerRuntime(options), DockerRuntime(options)
    await dead.start(folders)
    await dead.put("answer.txt", b"old")

    await fresh.start(folders)

    assert len(await containers(session=folders.session_id)) == 1
    with pytest.raises(FileNotFoundError):
        await fresh.get("answer.txt")
    with pytest.raises(RuntimeFailure):  # the container is gone, which is not the same as the file
        await dead.get("answer.txt")
    await fresh.stop()
    await dead.stop()


@pytest.mark.parametrize("delay_s", [0, 0.01, 0.03, 0.1, 0.2, 0.3])
async def test_a_start_that_is_broken_off_leaves_nothing(
    docker_image: str, tmp_path: Path, delay_s: float
) -> None:
    folders = folders_in(tmp_path)
    runtime = DockerRuntime(DockerOptions(image=docker_image))
    task = asyncio.create_task(runtime.start(folders))
    await asyncio.sleep(delay_s)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():  # a machine that was quicker
        await runtime.stop()
    assert await containers(session=folders.session_id) == []
    assert not folders.root.exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"image": "polar-no-such-image"}, "no image 'polar-no-such-image': `polar image build`"),
        ({"user": "nobody-here"}, "nobody-here"),
        ({"workspace": "/etc/passwd"}, "/etc/passwd of the image is not a folder"),
        ({"limits": {"cpus": 1000}}, "the limit is 1000 CPUs, but the machine has"),
    ],
)
async def test_a_start_that_fails_says_why_and_leaves_nothing(
    docker_image: str, tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    folders = folders_in(tmp_path)
    runtime = DockerRuntime(DockerOptions.model_validate({"image": docker_image, **options}))
    with pytest.raises(RuntimeFailure, match=reason):
        await runtime.start(folders)
    assert await containers(session=folders.session_id) == []
    assert not folders.root.exists()


async def test_a_folder_with_other_things_in_it_is_refused_and_left_alone(
    docker_image: str, tmp_path: Path
) -> None:
    folders = folders_in(tmp_path)
    folders.root.mkdir()
    (folders.root / "thesis.tex").write_text("years of work")
    runtime = DockerRuntime(DockerOptions(image=docker_image))
    with pytest.raises(RuntimeFailure, match=r"thesis\.tex"):
        await runtime.start(folders)
    await runtime.stop()
    assert (folders.root / "thesis.tex").exists()


async def test_several_at_once_do_not_disturb_each_other(start_docker: StartDocker) -> None:
    runtimes = await asyncio.gather(*(start_docker() for _ in range(5)))
    for number, runtime in enumerate(runtimes):
        await runtime.put("number", str(number).encode())
    told = await asyncio.gather(*(runtime.exec(sh("cat number")) for runtime in runtimes))
    assert [finished.stdout_tail for finished in told] == ["0", "1", "2", "3", "4"]
    await asyncio.gather(*(runtime.stop() for runtime in runtimes))


async def test_the_registry_knows_it(docker_image: str, tmp_path: Path) -> None:
    made: Runtime = make("runtime", Spec(name="docker", options={"image": docker_image}))
    folders = folders_in(tmp_path)
    await made.start(folders)
    assert (await made.exec(Command(argv=("true",)))).exit_code == 0
    await made.stop()
    assert not folders.root.exists()
