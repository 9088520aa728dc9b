"""Sessions of `local` see their folders at the same paths, and only a trusted mount point is used."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from polar.errors import RuntimeFailure
from polar.runtimes.base import Command, SessionFolders
from polar.runtimes.local.runtime import LocalOptions, LocalRuntime
from polar.runtimes.local.views import mount_point

Start = Callable[..., "asyncio.Future[LocalRuntime]"]
AS_ANOTHER_USER = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    begun: list[LocalRuntime] = []

    async def start(name: str, **options: bool) -> LocalRuntime:
        runtime = LocalRuntime(LocalOptions(**options))
        begun.append(runtime)
        await runtime.start(SessionFolders(name, tmp_path / name, tmp_path / "logs"))
        return runtime

    yield lambda *names, **options: asyncio.ensure_future(start(*names, **options))
    for runtime in begun:
        await runtime.stop()


async def seeing_the_same(start: Start, *names: str) -> list[LocalRuntime]:
    runtimes = [await start(name) for name in names]
    for runtime in runtimes:
        if runtime.notes:
            pytest.skip(runtime.notes[0])
    return runtimes


def sh(script: str) -> Command:
    return Command(argv=("/bin/sh", "-c", script))


async def test_all_sessions_see_the_same_paths(start: Start) -> None:
    said: set[str] = set()
    for runtime in await seeing_the_same(start, "one", "two"):
        finished = await runtime.exec(sh("pwd -P; echo $HOME; echo $TMPDIR; cd ..; pwd -P; ls"))
        said.add(finished.stdout_tail)
        assert finished.stdout_tail.split()[:2] == [runtime.workspace, runtime.home]
    assert len(said) == 1


async def test_each_has_its_own_files_there(start: Start, tmp_path: Path) -> None:
    one, two = await seeing_the_same(start, "one", "two")
    await one.put("word", b"one")
    await two.put("word", b"two")
    await one.exec(sh("echo more >>word; mktemp; touch ~/home-of-one"))
    assert [await runtime.get("word") for runtime in (one, two)] == [b"onemore\n", b"two"]
    assert (tmp_path / "one/home/home-of-one").exists()
    assert len(list((tmp_path / "one/tmp").iterdir())) == 1
    assert not (await two.exec(sh("ls $HOME $TMPDIR"))).stdout_tail.split()[2:]


async def test_the_machine_sees_nothing_of_it(start: Start) -> None:
    (runtime,) = await seeing_the_same(start, "one")
    await runtime.exec(sh("touch file"))
    assert list(Path(runtime.workspace).parent.iterdir()) == []
    assert runtime.workspace not in Path("/proc/self/mountinfo").read_text()


async def test_a_link_leads_where_it_leads_inside(start: Start, tmp_path: Path) -> None:
    (runtime,) = await seeing_the_same(start, "one")
    await runtime.put("real/file", b"text")
    await runtime.exec(
        sh("ln -s $PWD/real link; ln -s $PWD/../home out; ln -s /etc etc; ln -s $PWD/circle circle")
    )
    assert await runtime.get("link/file") == b"text"
    assert (await runtime.exec(Command(argv=("pwd",), cwd="link"))).stdout_tail == f"{runtime.workspace}/real\n"
    await runtime.fetch("link", tmp_path / "fetched", cap_bytes=1000)
    assert (tmp_path / "fetched/file").read_bytes() == b"text"
    for path in ("out/x", "etc/passwd", "circle", "../x"):
        with pytest.raises(RuntimeFailure):
            await runtime.get(path)


async def test_a_command_keeps_its_rights_and_gets_none(start: Start) -> None:
    """Its ids and rights are the node's."""
    (runtime,) = await seeing_the_same(start, "one")
    ask = "id -u; id -g; grep -E 'Cap(Eff|Prm|Amb)' /proc/self/status"
    assert (await runtime.exec(sh(ask))).stdout_tail == said_here(ask)


def said_here(script: str) -> str:
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout


async def test_whoever_wants_none_gets_none(start: Start, tmp_path: Path) -> None:
    runtime = await start("one", same_paths=False)
    assert runtime.workspace == str((tmp_path / "one/work").resolve())
    assert (await runtime.exec(sh("pwd -P"))).stdout_tail.strip() == runtime.workspace
    assert "same_paths" in runtime.notes[0]


USER = """
import os, sys
from polar.runtimes.host import supervisor_main
source, target, command = sys.argv[1:]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
supervisor_main.kernel("prctl", 4, 1, 0, 0, 0)  # as after the execution of a program
try:
    supervisor_main.show(source, target)
except OSError as error:
    sys.exit(f"no view: {error}")
os.chdir(f"{target}/work")
os.execvp("sh", ["sh", "-c", command])
"""


@AS_ANOTHER_USER
def test_a_user_who_is_not_root_stays_who_he_is_and_gets_no_rights() -> None:
    made = [Path(tempfile.mkdtemp(prefix="polar-view-")) for _ in range(2)]
    source, target = made
    try:
        (source / "work").mkdir()
        for folder in (source, source / "work"):
            os.chown(folder, 65534, 65534)
        target.chmod(0o755)
        ask = "pwd -P; id -u; id -g; grep -E 'Cap(Eff|Prm|Amb)' /proc/self/status; touch file"
        argv = [sys.executable, "-c", USER, str(source), str(target), ask]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.stderr.startswith("no view"):
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr
        nothing = [f"Cap{kind}:\t{'0' * 16}" for kind in ("Prm", "Eff", "Amb")]
        assert done.stdout.splitlines() == [f"{target}/work", "65534", "65534", *nothing]
        assert (source / "work/file").stat().st_uid == 65534
        assert list(target.iterdir()) == []
    finally:
        for folder in made:
            shutil.rmtree(folder)


# The mount point


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def test_it_is_made_once(parent: Path) -> None:
    assert [mount_point(parent / "polar") for _ in range(2)] == [str(parent / "polar")] * 2
    assert stat.S_IMODE((parent / "polar").stat().st_mode) == 0o755


def test_a_link_is_no_mount_point(parent: Path) -> None:
    (parent / "other").mkdir()
    (parent / "polar").symlink_to(parent / "other")
    with pytest.raises(RuntimeFailure, match="not a folder"):
        mount_point(parent / "polar")


def test_nor_is_a_folder_that_holds_something(parent: Path) -> None:
    """Its files would be hidden from the sessions, such as those of a session in which this node runs."""
    (parent / "polar/work").mkdir(parents=True)
    with pytest.raises(RuntimeFailure, match="not empty"):
        mount_point(parent / "polar")


def test_nor_one_that_anybody_can_rename(parent: Path) -> None:
    parent.chmod(0o777)
    with pytest.raises(RuntimeFailure, match="rename"):
        mount_point(parent / "polar")


@AS_ANOTHER_USER
def test_where_another_user_was_first_ours_has_our_number(parent: Path) -> None:
    (parent / "polar").mkdir()
    os.chown(parent / "polar", 65534, 65534)
    assert mount_point(parent / "polar") == str(parent / f"polar-{os.geteuid()}")
    os.chown(parent / f"polar-{os.geteuid()}", 65534, 65534)
    with pytest.raises(RuntimeFailure, match="another user"):
        mount_point(parent / "polar")
