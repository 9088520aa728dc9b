"""The bubblewrap runtime: commands, their output and environment, and no process left at the end."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bubblewrap_bench import Sessions, alive_in, bash, begin, needs_bubblewrap, network_of, sh

from polar.errors import RuntimeFailure
from polar.registry import make
from polar.runtimes.base import Command, Program, Runtime, SessionFolders
from polar.runtimes.bubblewrap.namespace_holder_main import ETC
from polar.runtimes.bubblewrap.runtime import BubblewrapOptions, BubblewrapRuntime
from polar.types import Spec
from waiting import until

pytestmark = needs_bubblewrap


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    made = Sessions(tmp_path)
    yield made
    await made.stop()


@pytest.fixture
def folders(sessions: Sessions) -> SessionFolders:
    return sessions.folders()


@pytest.fixture
async def runtime(sessions: Sessions, folders: SessionFolders) -> BubblewrapRuntime:
    return await sessions.start(folders, output_cap_bytes=1000, tail_bytes=100)


async def test_a_command_runs_in_the_workspace(runtime: BubblewrapRuntime, folders: SessionFolders) -> None:
    finished = await runtime.exec(sh("pwd; echo oops >&2; exit 3"))

    assert finished.exit_code == 3
    assert finished.stdout_tail == "/work\n" == f"{runtime.workspace}\n"
    assert finished.stderr_tail == "oops\n"
    assert (folders.logs / "command.stdout").read_text() == "/work\n"


async def test_the_registry_knows_it(tmp_path: Path) -> None:
    made: Runtime = make("runtime", Spec(name="bubblewrap", options={"workspace": "/testbed"}))
    await made.start(SessionFolders("s-1", tmp_path / "root", tmp_path / "logs"))
    assert (await made.exec(Command(argv=("pwd",)))).stdout_tail == "/testbed\n"
    await made.stop()


async def test_odd_characters_in_the_places_path_do_no_harm(tmp_path: Path, sessions: Sessions) -> None:
    base = tmp_path / "ba,se:\\x"
    base.mkdir()
    (base / "file").write_text("below")
    odd = tmp_path / "a,b:c\\d 'e' é"
    runtime = await sessions.start(SessionFolders("s-1", odd / "root", odd / "logs", base))
    assert (await runtime.exec(sh("cat file"))).stdout_tail == "below"


async def test_a_signal_ends_a_command_with_128_and_its_number(runtime: BubblewrapRuntime) -> None:
    assert (await runtime.exec(sh("kill -KILL $$"))).exit_code == 137


async def test_a_command_may_run_in_a_folder_of_the_workspace(runtime: BubblewrapRuntime) -> None:
    await runtime.put("deep/er/file", b"")
    assert (await runtime.exec(Command(argv=("pwd",), cwd="deep/er"))).stdout_tail == "/work/deep/er\n"


async def test_stdin_is_at_its_end(runtime: BubblewrapRuntime) -> None:
    assert (await runtime.exec(Command(argv=("cat",)))).exit_code == 0


async def test_the_environment_is_the_commands_own(
    runtime: BubblewrapRuntime, folders: SessionFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-leak")
    await runtime.exec(Command(argv=("env", "-0"), env={"MINE": "a b", "POLAR_SESSION": "forged"}))

    lines = (folders.logs / "command.stdout").read_text().split("\0")
    seen = dict(line.split("=", 1) for line in lines if line)
    assert seen.keys() == {"PATH", "LANG", "HOME", "TMPDIR", "PWD", "MINE", "POLAR_SESSION"}
    assert seen["HOME"] == runtime.home
    assert seen["MINE"] == "a b"
    assert seen["POLAR_SESSION"] == "s-1"


async def test_the_environment_is_not_on_the_nodes_command_lines(runtime: BubblewrapRuntime) -> None:
    """Every user of the node can read command lines, and a harness gets its key in the environment."""
    network = await network_of(runtime)
    task = asyncio.create_task(runtime.exec(sh("touch ready; sleep 1000", KEY="sk-4711")))
    await until(lambda: len(alive_in(network)) > 2)
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in alive_in(network)]
    await runtime.kill()
    await task
    assert lines
    assert not any(b"sk-4711" in line for line in lines)


async def test_no_word_can_smuggle_in_an_option(runtime: BubblewrapRuntime) -> None:
    for command in (
        Command(argv=("true",), env={"A": "x\0--bind\0/\0/mnt"}),
        Command(argv=("true",), env={"A\0--dev-bind": "x"}),
        Command(argv=("echo", "a\0b")),
    ):
        with pytest.raises(RuntimeFailure, match="cannot start"):
            await runtime.exec(command)
    finished = await runtime.exec(Command(argv=("echo", "--bind", "/", "--help"), env={"X": "--help"}))
    assert finished.stdout_tail == "--bind / --help\n"


async def test_the_shared_parts_of_etc_are_the_nodes_own(runtime: BubblewrapRuntime) -> None:
    """Programs ask /etc/os-release which system they run on."""
    shared = [name for name in ETC if Path("/etc", name).is_file()]
    assert "os-release" in shared
    finished = await runtime.exec(sh(f"cd /etc && cat {' '.join(shared)} | sha256sum"))
    whole = hashlib.sha256(b"".join(Path("/etc", name).read_bytes() for name in shared)).hexdigest()
    assert finished.stdout_tail.split()[0] == whole


async def test_programs_are_there_to_be_read(sessions: Sessions, tmp_path: Path) -> None:
    program = Program("greeter+1.0", tmp_path / "greeter")
    program.source.mkdir()
    (program.source / "greet").write_text("#!/bin/sh\necho hello\n")
    (program.source / "greet").chmod(0o755)
    runtime = await sessions.start(sessions.folders(programs=(program,)))

    greet = f"{runtime.program(program)}/greet"
    assert (await runtime.exec(Command(argv=(greet,)))).stdout_tail == "hello\n"
    assert (await runtime.exec(sh(f"echo bad >>{greet}"))).exit_code != 0
    assert (program.source / "greet").read_text() == "#!/bin/sh\necho hello\n"


async def test_a_program_cannot_be_put_elsewhere_by_its_name(sessions: Sessions, tmp_path: Path) -> None:
    for name in ("", "..", "../../etc"):
        with pytest.raises(RuntimeFailure, match="is not a valid program name"):
            await sessions.start(sessions.folders(programs=(Program(name, tmp_path),)))


async def test_output_beyond_the_cap_is_thrown_away_and_the_command_goes_on(
    runtime: BubblewrapRuntime, folders: SessionFolders
) -> None:
    finished = await runtime.exec(sh("head -c 300000 /dev/zero | tr '\\0' x; echo end; touch done"))
    assert finished.exit_code == 0
    assert await runtime.get("done") == b""
    assert (folders.logs / "command.stdout").read_text().startswith("x" * 1000 + "\n[polar: ")
    assert finished.stdout_tail == "x" * 96 + "end\n"


# What cannot be started


async def test_a_missing_command_is_a_clear_failure(runtime: BubblewrapRuntime) -> None:
    with pytest.raises(RuntimeFailure, match="'no-such-program': there is no such program"):
        await runtime.exec(Command(argv=("no-such-program",)))


async def test_a_command_that_cannot_be_executed_is_a_clear_failure(runtime: BubblewrapRuntime) -> None:
    await runtime.put("notes.txt", b"no program")
    for argv in (("./notes.txt",), ("echo", "x" * 200_000)):
        with pytest.raises(RuntimeFailure, match="cannot start"):
            await runtime.exec(Command(argv=argv))


async def test_a_command_that_fails_like_bubblewrap_does_is_no_failure_of_the_runtime(
    runtime: BubblewrapRuntime,
) -> None:
    said = "bwrap: execvp /bin/sh: No such file or directory"
    finished = await runtime.exec(sh(f"echo {said} >&2; exit 1"))
    assert finished.exit_code == 1


async def test_a_missing_folder_is_a_clear_failure(runtime: BubblewrapRuntime) -> None:
    with pytest.raises(RuntimeFailure, match="no folder 'nowhere'"):
        await runtime.exec(Command(argv=("true",), cwd="nowhere"))


async def test_an_image_that_is_not_there_is_a_clear_failure(sessions: Sessions) -> None:
    with pytest.raises(RuntimeFailure, match="polar image build"):
        await sessions.start(image="no-such-image")


# The network


async def test_a_session_calls_through_its_listener(runtime: BubblewrapRuntime) -> None:
    listener = await runtime.listener()
    assert listener is not None
    port = listener.getsockname()[1]

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello from outside\n")
        writer.close()

    async with await asyncio.start_server(greet, sock=listener):
        finished = await runtime.exec(bash(f"cat </dev/tcp/127.0.0.1/{port}"))
    assert finished.stdout_tail == "hello from outside\n"


async def test_without_a_network_there_is_no_listener_but_a_loopback(sessions: Sessions) -> None:
    runtime = await sessions.start(network="none")
    assert await runtime.listener() is None
    assert (await runtime.exec(sh("cat /proc/net/fib_trie"))).stdout_tail.count("127.0.0.1") > 0


async def test_an_open_network_is_the_nodes(sessions: Sessions) -> None:
    runtime = await sessions.start(network="open")
    assert await runtime.listener() is None
    with socket.create_server(("127.0.0.1", 0)) as server:
        finished = await runtime.exec(bash(f": </dev/tcp/127.0.0.1/{server.getsockname()[1]}"))
    assert finished.exit_code == 0


# The end


async def test_a_cancelled_command_is_dead_when_the_cancellation_arrives(runtime: BubblewrapRuntime) -> None:
    network = await network_of(runtime)
    task = await begin(runtime, "sleep 1000 & setsid sleep 1000 & touch ready; wait")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(alive_in(network)) == 1


@pytest.mark.parametrize("delay_ms", [0, 1, 2, 4, 6, 8, 10, 12, 15, 20, 30])
async def test_a_command_cancelled_while_it_starts_leaves_nothing(
    runtime: BubblewrapRuntime, delay_ms: int
) -> None:
    network = await network_of(runtime)
    tasks = [asyncio.create_task(runtime.exec(sh("setsid sleep 1000 & sleep 1000"))) for _ in range(3)]
    await asyncio.sleep(delay_ms / 1000)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert len(alive_in(network)) == 1


async def test_a_time_limit_ends_a_command_that_ignores_signals(runtime: BubblewrapRuntime) -> None:
    network = await network_of(runtime)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await runtime.exec(sh("trap '' TERM INT HUP; while :; do sleep 0.05; done"))
    assert len(alive_in(network)) == 1


async def test_an_impatient_second_cancellation_does_not_cut_the_killing_short(
    runtime: BubblewrapRuntime,
) -> None:
    network = await network_of(runtime)
    task = asyncio.create_task(runtime.exec(sh("sleep 1000")))
    for _ in range(20):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(alive_in(network)) == 1


async def test_what_a_command_leaves_in_the_background_ends_with_it(runtime: BubblewrapRuntime) -> None:
    network = await network_of(runtime)
    assert (await runtime.exec(sh("setsid sleep 1000 >/dev/null 2>&1 &"))).exit_code == 0
    assert len(alive_in(network)) == 1


async def test_kill_ends_all_commands_and_keeps_the_files(runtime: BubblewrapRuntime) -> None:
    network = await network_of(runtime)
    deaf = "trap '' TERM; setsid sleep 1000 & touch {0}; sleep 1000"
    tasks = [await begin(runtime, deaf.format(ready), ready) for ready in ("first", "second")]
    await runtime.kill()
    assert [(await task).exit_code for task in tasks] == [137, 137]
    assert len(alive_in(network)) == 1
    assert (await runtime.exec(sh("ls"))).stdout_tail == "first\nsecond\n"


async def test_stop_leaves_the_logs_and_nothing_else(runtime: BubblewrapRuntime, folders: SessionFolders) -> None:
    network = await network_of(runtime)
    task = await begin(runtime, "echo hi; touch ready; sleep 1000")
    await asyncio.gather(runtime.stop(), runtime.stop())
    await runtime.stop()
    await task
    assert not alive_in(network)
    assert not folders.root.exists()
    assert (folders.logs / "command.stdout").read_text().endswith("hi\n")


async def test_a_stopped_runtime_takes_no_command_and_no_file(runtime: BubblewrapRuntime) -> None:
    await runtime.stop()
    with pytest.raises(RuntimeFailure, match="stopped"):
        await runtime.exec(Command(argv=("true",)))
    with pytest.raises(RuntimeFailure, match="stopped"):
        await runtime.put("file", b"")


@pytest.mark.parametrize("turns", range(0, 40, 5))
async def test_a_command_that_races_with_stop_does_not_outlive_it(
    runtime: BubblewrapRuntime, folders: SessionFolders, turns: int
) -> None:
    network = await network_of(runtime)
    task = asyncio.create_task(runtime.exec(sh("sleep 1000")))
    for _ in range(turns):
        await asyncio.sleep(0.0005)
    await runtime.stop()
    await asyncio.wait([task])
    assert isinstance(task.exception(), RuntimeFailure) or task.result().exit_code != 0
    assert not alive_in(network)
    assert not folders.root.exists()


async def test_a_cancelled_stop_still_removes_everything(
    runtime: BubblewrapRuntime, folders: SessionFolders
) -> None:
    network = await network_of(runtime)
    task = asyncio.create_task(runtime.stop())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not folders.root.exists()
    assert not alive_in(network)


@pytest.mark.parametrize("delay_ms", [0, 5, 10, 15, 20, 30])
async def test_a_start_that_is_cancelled_leaves_nothing(folders: SessionFolders, delay_ms: int) -> None:
    runtime = BubblewrapRuntime(BubblewrapOptions())
    task = asyncio.create_task(runtime.start(folders))
    await asyncio.sleep(delay_ms / 1000)
    task.cancel()
    await asyncio.wait([task])
    await runtime.stop()
    assert not folders.root.exists()
    assert not [p for p in Path("/proc").glob("[0-9]*/environ") if str(folders.root).encode() in read(p)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_stop_before_start_is_nothing() -> None:
    await BubblewrapRuntime(BubblewrapOptions()).stop()


async def test_a_start_clears_what_was_left_of_the_same_place(folders: SessionFolders, sessions: Sessions) -> None:
    dead = await sessions.start(folders)
    network = await network_of(dead)
    task = await begin(dead, "touch ready; sleep 1000")

    fresh = await sessions.start(folders)

    assert not alive_in(network)
    await asyncio.wait([task])
    with pytest.raises(FileNotFoundError):
        await fresh.get("ready")


async def test_a_folder_with_other_things_in_it_is_refused_and_left_alone(folders: SessionFolders) -> None:
    folders.root.mkdir(parents=True)
    (folders.root / "thesis.tex").write_text("years of work")
    runtime = BubblewrapRuntime(BubblewrapOptions())
    with pytest.raises(RuntimeFailure, match=r"thesis\.tex"):
        await runtime.start(folders)
    await runtime.stop()
    assert (folders.root / "thesis.tex").exists()
