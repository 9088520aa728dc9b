"""Commands in a container: output, environment, exit codes, and no process left at the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from docker_machine import StartDocker, container_of, containers, processes_in, sh

from polar.errors import RuntimeFailure
from polar.runtimes.base import Command, Finished
from polar.runtimes.docker.runtime import DockerRuntime
from waiting import until

pytestmark = pytest.mark.check


@pytest.fixture
async def runtime(start_docker: StartDocker) -> DockerRuntime:
    return await start_docker(tail_bytes=100)


@pytest.fixture
def logs(runtime: DockerRuntime, tmp_path: Path) -> Path:
    return tmp_path / "session-0" / "logs"


async def begin(runtime: DockerRuntime, script: str) -> asyncio.Task[Finished]:
    """Runs a script that sleeps in one way or another."""
    task = asyncio.create_task(runtime.exec(sh(script)))
    container = await container_of(runtime)
    await until(lambda: any("sleep" in words for words in processes_in(container)))
    return task


async def test_a_command_runs_in_the_workspace(runtime: DockerRuntime, logs: Path) -> None:
    finished = await runtime.exec(sh("pwd; echo oops >&2; exit 3"))

    assert finished.exit_code == 3
    assert finished.stdout_tail == f"{runtime.workspace}\n"
    assert finished.stderr_tail == "oops\n"
    assert (logs / "command.stdout").read_text() == f"{runtime.workspace}\n"
    assert (logs / "command.stderr").read_text() == "oops\n"


async def test_a_command_may_run_in_a_folder_of_the_workspace(runtime: DockerRuntime) -> None:
    await runtime.put("deep/er/file", b"")
    assert (await runtime.exec(Command(("pwd",), cwd="deep/er"))).stdout_tail == "/work/deep/er\n"
    for nowhere in ("nowhere", "deep/er/file", "deep/er/file/below"):
        with pytest.raises(RuntimeFailure, match=f"no folder '{nowhere}'"):
            await runtime.exec(Command(("true",), cwd=nowhere))


async def test_the_environment_is_the_images_and_the_commands(
    runtime: DockerRuntime, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-leak")
    monkeypatch.setenv("PATH", "/of/the/node:/usr/bin")

    await runtime.exec(Command(("env", "-0"), env={"MINE": "a b", "POLAR_SESSION": "forged"}))

    seen = dict(line.split("=", 1) for line in (logs / "command.stdout").read_text().split("\0") if line)
    assert seen.keys() - {"HOSTNAME", "TERM", "container"} == {"PATH", "LANG", "HOME", "MINE", "POLAR_SESSION"}
    assert seen["HOME"] == runtime.home
    assert seen["MINE"] == "a b"
    assert seen["POLAR_SESSION"].startswith("s-")
    assert "node" not in seen["PATH"]


async def test_a_command_may_bring_its_own_path(runtime: DockerRuntime) -> None:
    await runtime.put("bin/greet", b"#!/bin/sh\necho hello\n", executable=True)
    command = Command(("sh", "-c", "greet"), env={"PATH": f"{runtime.workspace}/bin:/bin"})
    assert (await runtime.exec(command)).stdout_tail == "hello\n"


async def test_stdin_is_at_its_end(runtime: DockerRuntime) -> None:
    assert (await runtime.exec(Command(("cat",)))).exit_code == 0


async def test_output_beyond_the_cap_is_thrown_away_and_the_command_goes_on(
    runtime: DockerRuntime, logs: Path
) -> None:
    finished = await runtime.exec(sh("head -c 3000000 /dev/zero | tr '\\0' x; echo end; touch done"))

    log = (logs / "command.stdout").read_text()
    assert finished.exit_code == 0
    assert await runtime.get("done") == b""
    assert log.startswith("x" * 1000 + "\n[polar: ")
    assert len(log) < 1100
    assert finished.stdout_tail == "x" * 96 + "end\n"


async def test_output_that_is_no_text_does_not_disturb(runtime: DockerRuntime) -> None:
    assert (await runtime.exec(sh(r"printf 'a\377b'"))).stdout_tail == "a�b"


async def test_a_log_name_cannot_leave_the_logs(runtime: DockerRuntime) -> None:
    with pytest.raises(RuntimeFailure, match="is not a valid log name"):
        await runtime.exec(Command(("true",), log_name="../x"))


async def test_a_background_child_is_not_waited_for_and_serves_the_next_command(runtime: DockerRuntime) -> None:
    finished = await runtime.exec(sh("echo before; sleep 1000 & echo $! >pid"))
    assert finished.stdout_tail == "before\n"
    assert (await runtime.exec(sh("kill -0 $(cat pid)"))).exit_code == 0
    await runtime.kill()
    assert not processes_in(await container_of(runtime))


async def test_a_command_that_cannot_be_executed_is_a_clear_failure(runtime: DockerRuntime) -> None:
    with pytest.raises(RuntimeFailure, match="'no-such-program': there is no such program"):
        await runtime.exec(Command(("no-such-program",)))
    await runtime.put("notes.txt", b"no program")
    for argv in (("./notes.txt",), ("echo", "x" * 200_000), ("echo", "a\0b")):
        with pytest.raises(RuntimeFailure, match="cannot start"):
            await runtime.exec(Command(argv))


# The end


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("sleep 1000", id="plain"),
        pytest.param("trap '' TERM INT HUP; while :; do sleep 1; done", id="deaf"),
        pytest.param("env -i setsid sh -c 'sleep 1000 & sleep 1000 & wait' & sleep 1000", id="a daemon"),
    ],
)
async def test_a_cancelled_command_is_dead_when_the_cancellation_arrives(
    runtime: DockerRuntime, script: str
) -> None:
    task = await begin(runtime, script)
    container = await container_of(runtime)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # an impatient second one does not cut the killing short
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not processes_in(container)


async def test_nothing_outlives_kill_and_the_files_stay(runtime: DockerRuntime) -> None:
    await runtime.put("kept.txt", b"kept")
    task = await begin(runtime, "setsid sleep 1000 & sleep 1000")
    container = await container_of(runtime)
    await runtime.kill()
    assert not processes_in(container)
    assert (await task).exit_code == 137
    await runtime.kill()
    assert await runtime.get("kept.txt") == b"kept"
    await runtime.put("more.txt", b" and more")
    assert (await runtime.exec(sh("cat kept.txt more.txt"))).stdout_tail == "kept and more"


async def test_a_session_that_ends_its_own_container_can_go_on(runtime: DockerRuntime) -> None:
    await runtime.exec(sh("echo kept >file; kill -9 -1"))
    assert (await runtime.exec(sh("cat file"))).stdout_tail.endswith("kept\n")


async def test_stop_leaves_nothing_but_the_logs(runtime: DockerRuntime, logs: Path) -> None:
    session = (await runtime.exec(sh("echo $POLAR_SESSION"))).stdout_tail.strip()
    await asyncio.gather(runtime.stop(), runtime.stop())
    await runtime.stop()
    assert await containers(session=session) == []
    assert not (logs.parent / "root").exists()
    assert (logs / "command.stdout").read_text().strip() == session
    with pytest.raises(RuntimeFailure, match="stopped"):
        await runtime.exec(Command(("true",)))
    with pytest.raises(RuntimeFailure, match="stopped"):
        await runtime.get("file")


async def test_a_cancelled_stop_still_removes_everything(runtime: DockerRuntime, logs: Path) -> None:
    session = (await runtime.exec(sh("echo $POLAR_SESSION"))).stdout_tail.strip()
    task = asyncio.create_task(runtime.stop())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await containers(session=session) == []
    assert not (logs.parent / "root").exists()


@pytest.mark.parametrize("delay_s", [0, 0.01, 0.05, 0.1])
async def test_a_command_that_races_with_stop_does_not_outlive_it(runtime: DockerRuntime, delay_s: float) -> None:
    container = await container_of(runtime)
    task = asyncio.create_task(runtime.exec(sh("sleep 1000")))
    await asyncio.sleep(delay_s)
    await runtime.stop()
    await asyncio.wait([task])
    assert isinstance(task.exception(), RuntimeFailure) or task.result().exit_code != 0
    assert not processes_in(container)


@pytest.mark.parametrize("delay_s", [0, 0.01, 0.05, 0.1])
async def test_a_command_cancelled_while_it_starts_leaves_nothing(runtime: DockerRuntime, delay_s: float) -> None:
    container = await container_of(runtime)
    task = asyncio.create_task(runtime.exec(sh("sleep 1000")))
    await asyncio.sleep(delay_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not processes_in(container)
