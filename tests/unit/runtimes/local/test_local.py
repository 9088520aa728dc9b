"""The local runtime: folders, a small environment, capped logs, and no process left at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from polar.errors import RuntimeFailure
from polar.registry import make
from polar.runtimes.base import Command, Runtime, SessionFolders
from polar.runtimes.host.processes import Family, find
from polar.runtimes.local.runtime import LocalOptions, LocalRuntime
from polar.types import Spec
from waiting import until

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the sweep reads /proc")


@pytest.fixture
def folders(tmp_path: Path) -> SessionFolders:
    return SessionFolders(session_id="s-1", root=tmp_path / "root", logs=tmp_path / "logs")


@pytest.fixture
async def runtime(folders: SessionFolders) -> AsyncIterator[LocalRuntime]:
    made = LocalRuntime(LocalOptions(output_cap_bytes=1000, tail_bytes=100, kill_grace_s=0.3))
    await made.start(folders)
    yield made
    await made.stop()


def sh(script: str, **env: str) -> Command:
    return Command(argv=("/bin/sh", "-c", script), env=env)


def work_of(runtime: LocalRuntime) -> Path:
    """The workspace as the node sees it."""
    return runtime._started().root / "work"  # pyright: ignore[reportPrivateUsage]


def home_of(runtime: LocalRuntime) -> Path:
    return runtime._started().root / "home"  # pyright: ignore[reportPrivateUsage]


def alive_in(folders: SessionFolders) -> set[int]:
    return find(Family(marker=f"POLAR_PLACE={folders.root.resolve()}:".encode(), leaders=frozenset()))


async def begin(runtime: LocalRuntime, script: str) -> asyncio.Task[object]:
    """Runs a script that writes the file `ready` once it is under way."""
    task: asyncio.Task[object] = asyncio.create_task(runtime.exec(sh(script)))
    await until((work_of(runtime) / "ready").exists)
    return task


async def test_a_command_runs_in_the_workspace(runtime: LocalRuntime, folders: SessionFolders) -> None:
    finished = await runtime.exec(sh("pwd; echo oops >&2; exit 3"))

    assert finished.exit_code == 3
    assert finished.stdout_tail == f"{runtime.workspace}\n"
    assert finished.stderr_tail == "oops\n"
    assert (folders.logs / "command.stdout").read_text() == f"{runtime.workspace}\n"
    assert (folders.logs / "command.stderr").read_text() == "oops\n"


async def test_the_registry_knows_it(tmp_path: Path) -> None:
    made: Runtime = make("runtime", Spec(name="local", options={"kill_grace_s": 0.1}))
    await made.start(SessionFolders("s-1", tmp_path / "root", tmp_path / "logs"))
    assert (await made.exec(Command(argv=("true",)))).exit_code == 0
    await made.stop()


async def test_a_signal_is_a_negative_exit_code(runtime: LocalRuntime) -> None:
    assert (await runtime.exec(sh("kill -KILL $$"))).exit_code == -signal.SIGKILL


async def test_a_command_may_run_in_a_folder_of_the_workspace(runtime: LocalRuntime) -> None:
    await runtime.put("deep/er/file", b"")
    finished = await runtime.exec(Command(argv=("pwd",), cwd="deep/er"))
    assert finished.stdout_tail == f"{runtime.workspace}/deep/er\n"


async def test_stdin_is_at_its_end(runtime: LocalRuntime) -> None:
    assert (await runtime.exec(Command(argv=("cat",)))).exit_code == 0


async def test_the_environment_is_minimal(
    runtime: LocalRuntime, folders: SessionFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-leak")
    monkeypatch.delenv("LC_ALL", raising=False)

    finished = await runtime.exec(Command(argv=("env", "-0"), env={"MINE": "a b", "POLAR_SESSION": "forged"}))

    seen = dict(line.split("=", 1) for line in finished_output(folders).split("\0") if line)
    assert finished.exit_code == 0
    assert seen.keys() == {"PATH", "LANG", "HOME", "TMPDIR", "MINE", "POLAR_SESSION", "POLAR_PLACE", "POLAR_OWNER"}
    assert seen["HOME"] == runtime.home
    assert Path(seen["TMPDIR"]).parent == Path(runtime.home).parent
    assert seen["MINE"] == "a b"
    assert seen["POLAR_SESSION"] == "s-1"


def finished_output(folders: SessionFolders) -> str:
    return (folders.logs / "command.stdout").read_text()


async def test_a_command_may_bring_its_own_path(runtime: LocalRuntime) -> None:
    await runtime.put("bin/greet", b"#!/bin/sh\necho hello\n", executable=True)
    command = Command(argv=("greet",), env={"PATH": f"{runtime.workspace}/bin"})
    assert (await runtime.exec(command)).stdout_tail == "hello\n"


async def test_folders_are_closed_to_others(runtime: LocalRuntime, folders: SessionFolders) -> None:
    for folder in (folders.root, work_of(runtime), home_of(runtime)):
        assert folder.stat().st_mode & 0o777 == 0o700


# Output


async def test_output_beyond_the_cap_is_thrown_away_and_the_command_goes_on(
    runtime: LocalRuntime, folders: SessionFolders
) -> None:
    finished = await runtime.exec(sh("head -c 300000 /dev/zero | tr '\\0' x; echo end; touch done"))

    log = (folders.logs / "command.stdout").read_text()
    assert finished.exit_code == 0
    assert (work_of(runtime) / "done").exists()
    assert log.startswith("x" * 1000 + "\n[polar: ")
    assert len(log) < 1100
    assert finished.stdout_tail == "x" * 96 + "end\n"


async def test_commands_of_one_log_name_share_its_cap(runtime: LocalRuntime, folders: SessionFolders) -> None:
    for letter in "abc":
        await runtime.exec(sh(f"head -c 400 /dev/zero | tr '\\0' {letter}"))
    log = (folders.logs / "command.stdout").read_text()
    assert log.startswith("a" * 400 + "b" * 400 + "c" * 200 + "\n[polar: ")


async def test_output_that_is_no_text_does_not_disturb(runtime: LocalRuntime) -> None:
    assert (await runtime.exec(sh(r"printf 'a\377b'"))).stdout_tail == "a�b"


async def test_a_log_name_cannot_leave_the_logs(runtime: LocalRuntime) -> None:
    with pytest.raises(RuntimeFailure, match="is not a valid log name"):
        await runtime.exec(Command(argv=("true",), log_name="../x"))


async def test_a_background_child_that_holds_the_pipes_is_not_waited_for(
    runtime: LocalRuntime, folders: SessionFolders
) -> None:
    finished = await runtime.exec(sh("echo before; (while :; do echo tick; sleep 0.05; done) & echo $! >pid"))

    assert finished.exit_code == 0
    assert finished.stdout_tail.startswith("before\n")
    child = int(await runtime.get("pid"))
    os.kill(child, 0)  # it may serve the next command
    size_bytes = (folders.logs / "command.stdout").stat().st_size
    await until(lambda: (folders.logs / "command.stdout").stat().st_size > size_bytes)
    await runtime.kill()
    assert not alive_in(folders)


# The end


async def test_a_missing_command_is_a_clear_failure(runtime: LocalRuntime) -> None:
    with pytest.raises(RuntimeFailure, match="'no-such-program': there is no such program"):
        await runtime.exec(Command(argv=("no-such-program",)))


async def test_a_command_that_cannot_be_executed_is_a_clear_failure(runtime: LocalRuntime) -> None:
    await runtime.put("notes.txt", b"no program")
    for argv in (("./notes.txt",), ("echo", "x" * 200_000), ("echo", "a\0b")):
        with pytest.raises(RuntimeFailure, match="cannot start"):
            await runtime.exec(Command(argv=argv))


async def test_a_missing_folder_is_a_clear_failure(runtime: LocalRuntime) -> None:
    with pytest.raises(RuntimeFailure, match="no folder 'nowhere'"):
        await runtime.exec(Command(argv=("true",), cwd="nowhere"))


async def test_a_cancelled_command_is_dead_when_the_cancellation_arrives(
    runtime: LocalRuntime, folders: SessionFolders
) -> None:
    task = await begin(runtime, "sleep 1000 & touch ready; wait")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive_in(folders)


async def test_a_time_limit_ends_a_command_that_ignores_signals(
    runtime: LocalRuntime, folders: SessionFolders
) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await runtime.exec(sh("trap '' TERM INT HUP; while :; do sleep 0.05; done"))
    assert not alive_in(folders)


async def test_an_impatient_second_cancellation_does_not_cut_the_killing_short(
    runtime: LocalRuntime, folders: SessionFolders
) -> None:
    task = await begin(runtime, "trap '' TERM; touch ready; while :; do sleep 0.05; done")
    task.cancel()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive_in(folders)


async def test_a_cancelled_command_takes_no_other_with_it(runtime: LocalRuntime, folders: SessionFolders) -> None:
    await runtime.exec(sh("sleep 1000 & echo $! >server"))
    task = await begin(runtime, "touch ready; sleep 1000")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert alive_in(folders) == {int(await runtime.get("server"))}


async def test_a_command_ends_softly_where_it_can(runtime: LocalRuntime) -> None:
    task = await begin(runtime, "trap 'touch saved; exit 0' TERM; touch ready; while :; do sleep 0.05; done")
    await runtime.kill()
    await task
    assert await runtime.get("saved") == b""


@linux_only
@pytest.mark.parametrize(
    "escape",
    [
        pytest.param("setsid sleep 1000 &", id="its own session"),
        pytest.param("setsid sh -c 'sleep 1000 & sleep 1000 & wait' &", id="a tree in its own session"),
        pytest.param("(setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' &) &", id="a deaf daemon"),
        pytest.param("env -i sleep 1000 &", id="without the marker, in the group"),
        pytest.param("env -i setsid sleep 1000 &", id="without the marker, a child of a member"),
        pytest.param(
            "env -i setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' &",
            id="without the marker, deaf, a child of a member",
        ),
    ],
)
async def test_nothing_outlives_kill(runtime: LocalRuntime, folders: SessionFolders, escape: str) -> None:
    task = await begin(runtime, f"touch ready; {escape} sleep 1000")
    await until(lambda: len(named("sleep", folders)) >= 1)
    await runtime.kill()
    await task
    assert not named("sleep", folders)
    assert not alive_in(folders)


@linux_only
async def test_nothing_outlives_stop_after_its_command_has_gone(
    runtime: LocalRuntime, folders: SessionFolders
) -> None:
    await runtime.exec(sh("setsid sleep 1000 & env -i sleep 1000 &"))
    await until(lambda: len(named("sleep", folders)) == 2)
    await runtime.stop()
    assert not named("sleep", folders)


def named(program: str, folders: SessionFolders) -> set[int]:
    """Processes of that name in the session's workspace, whatever their environment."""
    if not (folders.root / "work").exists():
        return set()
    workspace, found = os.stat(folders.root / "work"), set[int]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, cwd = (entry / "comm").read_text().strip(), os.stat(entry / "cwd")
            except OSError:
                continue
            if name == program and os.path.samestat(cwd, workspace):
                found.add(int(entry.name))
    return found


async def test_kill_keeps_the_files_and_later_commands_run(runtime: LocalRuntime) -> None:
    await runtime.put("kept.txt", b"kept")
    await runtime.kill()
    assert await runtime.get("kept.txt") == b"kept"
    assert (await runtime.exec(sh("cat kept.txt"))).stdout_tail == "kept"


async def test_stop_removes_the_folders_and_keeps_the_logs(runtime: LocalRuntime, folders: SessionFolders) -> None:
    await runtime.exec(sh("echo hi"))
    await runtime.stop()
    await runtime.stop()
    assert not folders.root.exists()
    assert (folders.logs / "command.stdout").read_text() == "hi\n"


async def test_two_stops_at_once_are_one(runtime: LocalRuntime, folders: SessionFolders) -> None:
    await asyncio.gather(runtime.stop(), runtime.stop())
    assert not folders.root.exists()


async def test_a_stopped_runtime_takes_no_command(runtime: LocalRuntime) -> None:
    await runtime.stop()
    with pytest.raises(RuntimeFailure, match="stopped"):
        await runtime.exec(Command(argv=("true",)))


@pytest.mark.parametrize("turns", range(8))
async def test_a_command_that_races_with_stop_does_not_outlive_it(
    runtime: LocalRuntime, folders: SessionFolders, turns: int
) -> None:
    task = asyncio.create_task(runtime.exec(sh("sleep 1000")))
    for _ in range(turns):
        await asyncio.sleep(0)
    await runtime.stop()
    await asyncio.wait([task])
    # The shell itself is ended, or it sees its command end first and exits with 128 + the signal.
    assert isinstance(task.exception(), RuntimeFailure) or task.result().exit_code != 0
    assert not alive_in(folders)
    assert not folders.root.exists()


@pytest.mark.parametrize("turns", range(8))
async def test_a_command_cancelled_while_it_starts_leaves_nothing(
    runtime: LocalRuntime, folders: SessionFolders, turns: int
) -> None:
    task = asyncio.create_task(runtime.exec(sh("sleep 1000")))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive_in(folders)


async def test_stop_before_start_is_nothing() -> None:
    await LocalRuntime(LocalOptions()).stop()


async def test_a_cancelled_stop_still_removes_everything(runtime: LocalRuntime, folders: SessionFolders) -> None:
    task = asyncio.create_task(runtime.stop())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not folders.root.exists()


async def test_a_start_clears_what_a_dead_node_left_of_the_same_place(folders: SessionFolders) -> None:
    dead = LocalRuntime(LocalOptions())
    await dead.start(folders)
    await dead.exec(sh("echo old >answer.txt; exec >/dev/null 2>&1; setsid sleep 1000 &"))

    fresh = LocalRuntime(LocalOptions())
    await fresh.start(folders)

    assert not alive_in(folders)
    with pytest.raises(FileNotFoundError):
        await fresh.get("answer.txt")
    await fresh.stop()
    await dead.stop()


async def test_a_folder_with_other_things_in_it_is_refused_and_left_alone(folders: SessionFolders) -> None:
    folders.root.mkdir()
    (folders.root / "thesis.tex").write_text("years of work")
    runtime = LocalRuntime(LocalOptions())
    with pytest.raises(RuntimeFailure, match=r"thesis\.tex"):
        await runtime.start(folders)
    await runtime.stop()
    assert (folders.root / "thesis.tex").exists()


# Files


async def test_files_go_in_and_out(runtime: LocalRuntime) -> None:
    await runtime.put("a/b.txt", "héllo".encode())
    await runtime.put("key.json", b"{}", home=True)
    await runtime.put("run", b"#!/bin/sh\necho ran\n", executable=True)

    assert await runtime.get("a/b.txt") == "héllo".encode()
    assert (await runtime.exec(Command(argv=("./run",)))).stdout_tail == "ran\n"
    assert (home_of(runtime) / "key.json").stat().st_mode & 0o777 == 0o600


async def test_a_file_put_again_is_replaced(runtime: LocalRuntime) -> None:
    await runtime.put("a", b"a longer text")
    await runtime.put("a", b"short")
    assert await runtime.get("a") == b"short"


async def test_a_file_that_is_not_there(runtime: LocalRuntime) -> None:
    await runtime.exec(sh("mkdir folder; mkfifo pipe"))
    for path in ("missing", "folder", "pipe"):
        with pytest.raises(FileNotFoundError):
            await runtime.get(path)


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "", "out/x", "out", "file", "nul\0", "circle", "circle/x"]
)
async def test_a_path_that_leaves_the_workspace_is_refused(
    runtime: LocalRuntime, tmp_path: Path, path: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    workspace = work_of(runtime)
    (workspace / "out").symlink_to(outside)
    (workspace / "file").symlink_to(outside / "x")
    (workspace / "circle").symlink_to(workspace / "circle")

    with pytest.raises(RuntimeFailure):
        await runtime.put(path, b"")
    with pytest.raises(RuntimeFailure):
        await runtime.get(path)
    assert list(outside.iterdir()) == []


async def test_a_link_inside_the_workspace_is_followed(runtime: LocalRuntime) -> None:
    await runtime.put("real/file", b"text")
    (work_of(runtime) / "link").symlink_to("real")
    assert await runtime.get("link/file") == b"text"


async def test_a_file_in_the_way_of_a_folder_is_a_clear_failure(runtime: LocalRuntime) -> None:
    await runtime.put("file", b"")
    with pytest.raises(RuntimeFailure, match="cannot write"):
        await runtime.put("file/below", b"")
