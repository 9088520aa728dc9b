"""The apptainer runtime: commands, files, logs, and no process left at the end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from apptainer_bench import KEPT_IN_WORKSPACE, alive_of, processes, running, sh

from polar.errors import RuntimeFailure
from polar.runtimes.apptainer.runtime import ApptainerOptions, ApptainerRuntime
from polar.runtimes.base import Command, Program, SessionFolders
from waiting import until

pytestmark = pytest.mark.check


async def begin(runtime: ApptainerRuntime, folders: SessionFolders, script: str) -> asyncio.Task[object]:
    """Runs a script that writes the file `ready` once it is under way."""
    task: asyncio.Task[object] = asyncio.create_task(runtime.exec(sh(script)))
    await until((folders.root / "work/ready").exists)
    return task


# Commands


async def test_a_command_runs_in_the_workspace(runtime: ApptainerRuntime, folders: SessionFolders) -> None:
    finished = await runtime.exec(sh("pwd; echo oops >&2; exit 3"))

    assert finished.exit_code == 3
    assert finished.stdout_tail == "/work\n"
    assert finished.stderr_tail == "oops\n"
    assert (folders.logs / "command.stdout").read_text() == "/work\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_signal_is_a_negative_exit_code(runtime: ApptainerRuntime, number: signal.Signals) -> None:
    assert (await runtime.exec(sh(f"kill -{int(number)} $$"))).exit_code == -number


@pytest.mark.parametrize("exit_code", [0, 1, 126, 127, 137, 255])
async def test_exit_codes_are_the_programs_own(runtime: ApptainerRuntime, exit_code: int) -> None:
    assert (await runtime.exec(sh(f"exit {exit_code}"))).exit_code == exit_code


async def test_a_command_may_run_in_a_folder_of_the_workspace(runtime: ApptainerRuntime) -> None:
    await runtime.put("deep/er/file", b"")
    finished = await runtime.exec(Command(argv=("pwd",), cwd="deep/er"))
    assert finished.stdout_tail == "/work/deep/er\n"


async def test_stdin_is_at_its_end(runtime: ApptainerRuntime) -> None:
    assert (await runtime.exec(Command(argv=("cat",)))).exit_code == 0


async def test_the_environment_is_the_commands_own(
    runtime: ApptainerRuntime, folders: SessionFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-leak")
    monkeypatch.setenv("APPTAINERENV_LEAK", "do-not-leak")
    odd = "a 'b' $HOME `id` \"c\"\nnext\\n"

    await runtime.exec(Command(argv=("env", "-0"), env={"MINE": odd, "EMPTY": "", "POLAR_SESSION": "forged"}))

    text = (folders.logs / "command.stdout").read_text()
    seen = dict(line.split("=", 1) for line in text.split("\0") if line)
    assert seen.keys() - {"PWD", "SHLVL", "_", "OLDPWD"} == {
        *("PATH", "LANG", "HOME", "TMPDIR", "MINE", "EMPTY", "POLAR_SESSION")
    }
    assert seen["MINE"] == odd
    assert seen["HOME"] == runtime.home
    assert seen["POLAR_SESSION"] == folders.session_id
    assert "/bin" in seen["PATH"].split(":")


async def test_a_command_may_bring_its_own_path_and_home(runtime: ApptainerRuntime) -> None:
    await runtime.put("bin/greet", b"#!/bin/sh\necho hello $HOME\n", executable=True)
    command = Command(argv=("greet",), env={"PATH": f"{runtime.workspace}/bin", "HOME": "/tmp"})
    assert (await runtime.exec(command)).stdout_tail == "hello /tmp\n"


async def test_a_name_that_no_shell_can_export_is_refused(runtime: ApptainerRuntime) -> None:
    with pytest.raises(RuntimeFailure, match=r"'a\.b' is not a valid variable name"):
        await runtime.exec(Command(argv=("true",), env={"a.b": "c"}))


async def test_long_arguments_arrive_whole(runtime: ApptainerRuntime) -> None:
    long = "x" * 100_000
    finished = await runtime.exec(Command(argv=("sh", "-c", 'echo ${#1} ${#2} "$3"', "sh", long, long, "a b\n'")))
    assert finished.stdout_tail == "100000 100000 a b\n'\n"


async def test_a_missing_command_is_a_clear_failure(runtime: ApptainerRuntime) -> None:
    await runtime.put("notes.txt", b"no program")
    for program in ("no-such-program", "./notes.txt", "/bin"):
        with pytest.raises(RuntimeFailure, match=f"'{program}': there is no such program"):
            await runtime.exec(Command(argv=(program,)))


async def test_a_command_that_cannot_be_passed_on_is_a_clear_failure(runtime: ApptainerRuntime) -> None:
    for argument in ("x" * 200_000, "a\0b"):
        with pytest.raises(RuntimeFailure, match="cannot start 'echo'"):
            await runtime.exec(Command(argv=("echo", argument)))


async def test_a_missing_folder_is_a_clear_failure(runtime: ApptainerRuntime) -> None:
    with pytest.raises(RuntimeFailure, match="no folder 'nowhere'"):
        await runtime.exec(Command(argv=("true",), cwd="nowhere"))


async def test_output_has_a_cap(runtime: ApptainerRuntime, folders: SessionFolders) -> None:
    finished = await runtime.exec(sh("head -c 300000 /dev/zero | tr '\\0' x; echo end"))
    log = (folders.logs / "command.stdout").read_text()
    assert log.startswith("x" * 2000 + "\n[polar: ")
    assert finished.stdout_tail == "x" * 996 + "end\n"


async def test_a_server_in_the_background_serves_the_next_command(runtime: ApptainerRuntime) -> None:
    await runtime.exec(sh("mkfifo ask answer; (cat ask >answer) >/dev/null 2>&1 &"))
    finished = await runtime.exec(sh("echo hello >ask & cat answer"))
    assert finished.stdout_tail == "hello\n"


# Files


async def test_files_go_in_and_out(runtime: ApptainerRuntime) -> None:
    await runtime.put("a/b.txt", "héllo".encode())
    await runtime.put("key.json", b"{}", home=True)
    await runtime.put("run", b"#!/bin/sh\necho ran; echo made >made.txt; ls -l ~/key.json\n", executable=True)

    finished = await runtime.exec(Command(argv=("./run",)))

    assert finished.stdout_tail.startswith("ran\n-rw-------")
    assert await runtime.get("a/b.txt") == "héllo".encode()
    assert await runtime.get("made.txt") == b"made\n"


async def test_a_file_that_is_not_there(runtime: ApptainerRuntime) -> None:
    await runtime.exec(sh("mkdir folder; mkfifo pipe"))
    for path in ("missing", "folder", "pipe"):
        with pytest.raises(FileNotFoundError):
            await runtime.get(path)


async def test_links_of_the_agent_do_not_lead_to_the_nodes_files(
    runtime: ApptainerRuntime, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the node")
    await runtime.exec(sh('ln -s "$1" direct; ln -s ../../secret up; ln -s / all'.replace("$1", str(secret))))

    for path in ("direct", "up", f"all{secret}", "../secret", str(secret), ""):
        with pytest.raises(RuntimeFailure):
            await runtime.get(path)
        with pytest.raises(RuntimeFailure):
            await runtime.put(path, b"changed")
    fetched = await runtime.fetch(".", tmp_path / "out", cap_bytes=1000)

    assert secret.read_text() == "of the node"
    assert sorted(fetched.left_out) == [f"{name}: a link that leads outside" for name in ("all", "direct", "up")]
    assert list((tmp_path / "out").iterdir()) == []


async def test_folders_go_in_and_out(runtime: ApptainerRuntime, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub/run").write_text("#!/bin/sh\necho ran >>../log\n")
    (source / "sub/run").chmod(0o755)
    (source / "link").symlink_to("sub/run")

    await runtime.put_folder(source, "project")
    await runtime.exec(Command(argv=("../link",), cwd="project/sub"))
    fetched = await runtime.fetch("project", tmp_path / "out", cap_bytes=1000)

    assert fetched.files == 2
    assert (tmp_path / "out/log").read_text() == "ran\n"
    assert (tmp_path / "out/link").readlink() == Path("sub/run")
    assert not (source / "log").exists()


async def test_the_workspace_begins_with_its_base_and_never_changes_it(
    folders: SessionFolders, options: ApptainerOptions, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "a.txt").write_text("first")
    runtime = ApptainerRuntime(options)
    await runtime.start(SessionFolders(folders.session_id, folders.root, folders.logs, base))
    try:
        finished = await runtime.exec(sh("cat a.txt; echo second >a.txt; mkdir sub; mv sub other"))
        assert finished.stdout_tail == "first"
        assert await runtime.get("a.txt") == b"second\n"
        assert [path.name for path in base.iterdir()] == ["a.txt"]
        assert (base / "a.txt").read_text() == "first"
    finally:
        await runtime.stop()


async def test_tools_are_read_and_not_written(
    folders: SessionFolders, options: ApptainerOptions, tmp_path: Path
) -> None:
    source = tmp_path / "a, tool: 1.0"
    source.mkdir()
    (source / "greet").write_text("#!/bin/sh\necho hello\n")
    (source / "greet").chmod(0o755)
    program = Program("greeter", source)
    runtime = ApptainerRuntime(options)
    await runtime.start(SessionFolders(folders.session_id, folders.root, folders.logs, None, (program,)))
    try:
        assert runtime.program(program) == "/opt/polar/greeter"
        assert (await runtime.exec(Command(argv=(f"{runtime.program(program)}/greet",)))).stdout_tail == "hello\n"
        finished = await runtime.exec(sh(f"echo bad >{runtime.program(program)}/greet"))
        assert finished.exit_code != 0
        assert "Read-only" in finished.stderr_tail
    finally:
        await runtime.stop()


@pytest.mark.parametrize("kind", ["image", "image_file"])
async def test_what_the_image_has_at_its_path_is_the_workspace(
    request: pytest.FixtureRequest, folders: SessionFolders, kind: str
) -> None:
    root: Path = request.getfixturevalue(kind)
    runtime = ApptainerRuntime(ApptainerOptions(image=str(root), workspace="/testbed"))
    await runtime.start(folders)
    try:
        assert await runtime.get("src/code.c") == KEPT_IN_WORKSPACE.encode()
        finished = await runtime.exec(sh("pwd; echo new >src/code.c; mv src lib"))
        assert finished.stdout_tail == "/testbed\n"
        assert await runtime.get("lib/code.c") == b"new\n"
    finally:
        await runtime.stop()


@pytest.mark.parametrize("kind", ["image", "image_file"])
async def test_what_is_written_elsewhere_stays_in_the_session(
    request: pytest.FixtureRequest, folders: SessionFolders, kind: str
) -> None:
    root: Path = request.getfixturevalue(kind)
    before = (root / "etc/passwd").read_bytes() if root.is_dir() else root.read_bytes()
    runtime = ApptainerRuntime(ApptainerOptions(image=str(root)))
    await runtime.start(folders)
    try:
        assert (await runtime.exec(sh("echo x >>/etc/passwd; echo y >/made; rm /bin/find"))).exit_code == 0
        await runtime.kill()
        finished = await runtime.exec(sh("cat /made; [ ! -e /bin/find ] && echo gone"))
        assert finished.stdout_tail == "y\ngone\n"
    finally:
        await runtime.stop()
    assert ((root / "etc/passwd").read_bytes() if root.is_dir() else root.read_bytes()) == before
    assert not running(str(folders.root))
    assert not alive_of(folders)


# The end


async def test_kill_keeps_the_files_and_later_commands_run(
    runtime: ApptainerRuntime, folders: SessionFolders
) -> None:
    task = await begin(runtime, folders, "touch ready; (trap '' TERM; setsid sleep 54321) & sleep 54321")
    assert running("sleep 54321")

    await runtime.kill()

    assert not running("sleep 54321")
    assert not alive_of(folders)
    finished = await task
    assert finished.exit_code < 0  # type: ignore[attr-defined]
    assert (await runtime.exec(sh("ls; pwd"))).stdout_tail == "ready\n/work\n"


async def test_a_cancelled_command_is_dead_when_the_cancellation_arrives(
    runtime: ApptainerRuntime, folders: SessionFolders
) -> None:
    task = await begin(runtime, folders, "env -i setsid sleep 54322 & touch ready; sleep 54322")
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not running("sleep 54322")
    assert (await runtime.exec(Command(argv=("true",)))).exit_code == 0


@pytest.mark.parametrize("delay_s", [0, 0.01, 0.03, 0.06, 0.1])
async def test_a_command_cancelled_while_it_starts_leaves_nothing(
    runtime: ApptainerRuntime, folders: SessionFolders, delay_s: float
) -> None:
    task = asyncio.create_task(runtime.exec(sh("sleep 54323")))
    await asyncio.sleep(delay_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not running("sleep 54323")
    assert not alive_of(folders)


@pytest.mark.parametrize("delay_s", [0, 0.02, 0.05, 0.1, 0.2, 0.3])
async def test_a_start_cancelled_on_its_way_leaves_nothing(
    folders: SessionFolders, options: ApptainerOptions, delay_s: float
) -> None:
    runtime = ApptainerRuntime(options)
    task = asyncio.create_task(runtime.start(folders))
    await asyncio.sleep(delay_s)
    task.cancel()
    await asyncio.wait([task])
    await runtime.stop()
    assert not alive_of(folders)
    assert not folders.root.exists()


async def test_an_instance_that_ended_by_itself_is_started_again(
    runtime: ApptainerRuntime, folders: SessionFolders
) -> None:
    await runtime.exec(sh("touch here"))
    (watcher,) = [pid for pid, line in processes().items() if line in alive_of(folders)]
    (init,) = map(int, Path(f"/proc/{watcher}/task/{watcher}/children").read_text().split())
    os.kill(watcher, signal.SIGKILL)
    await until(lambda: init not in processes())
    assert (await runtime.exec(sh("ls"))).stdout_tail == "here\n"


async def test_stop_removes_the_folders_and_keeps_the_logs(
    runtime: ApptainerRuntime, folders: SessionFolders
) -> None:
    await runtime.exec(sh("echo hi; chmod 000 .; mkdir -p /tmp/closed; chmod 000 /tmp/closed"))
    await asyncio.gather(runtime.stop(), runtime.stop())
    await runtime.stop()
    assert not folders.root.exists()
    assert (folders.logs / "command.stdout").read_text() == "hi\n"
    with pytest.raises(RuntimeFailure, match="stopped"):
        await runtime.exec(Command(argv=("true",)))


async def test_a_cancelled_stop_still_removes_everything(
    runtime: ApptainerRuntime, folders: SessionFolders
) -> None:
    task = asyncio.create_task(runtime.stop())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive_of(folders)
    assert not folders.root.exists()


async def test_sessions_side_by_side(options: ApptainerOptions, tmp_path: Path) -> None:
    sessions_folders = [
        SessionFolders(f"beside-{n}", tmp_path / f"root{n}", tmp_path / f"logs{n}") for n in range(4)
    ]
    runtimes = [ApptainerRuntime(options) for _ in sessions_folders]
    try:
        await asyncio.gather(
            *(one.start(folders) for one, folders in zip(runtimes, sessions_folders, strict=True))
        )
        await asyncio.gather(*(one.exec(sh(f"echo {n} >who")) for n, one in enumerate(runtimes)))
        assert [await one.get("who") for one in runtimes] == [f"{n}\n".encode() for n in range(4)]
        await runtimes[0].stop()
        assert (await runtimes[1].exec(sh("cat who"))).stdout_tail == "1\n"
    finally:
        await asyncio.gather(*(one.stop() for one in runtimes))
    assert not [line for folders in sessions_folders for line in alive_of(folders)]


async def test_a_folder_with_other_things_in_it_is_refused_and_left_alone(
    folders: SessionFolders, options: ApptainerOptions
) -> None:
    folders.root.mkdir()
    (folders.root / "thesis.tex").write_text("years of work")
    runtime = ApptainerRuntime(options)
    with pytest.raises(RuntimeFailure, match=r"thesis\.tex"):
        await runtime.start(folders)
    await runtime.stop()
    assert (folders.root / "thesis.tex").exists()


async def test_an_image_that_is_none_is_a_clear_failure(
    folders: SessionFolders, tmp_path: Path, image: Path
) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    for path, reason in ((tmp_path / "notes.txt", "cannot"), (tmp_path / "nowhere", "no image folder")):
        runtime = ApptainerRuntime(ApptainerOptions(image=str(path)))
        with pytest.raises(RuntimeFailure, match=reason):
            await runtime.start(folders)
        await runtime.stop()
        assert not folders.root.exists()
