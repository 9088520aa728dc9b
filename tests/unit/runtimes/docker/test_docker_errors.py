"""The docker runtime with a Docker Engine that is missing, refuses, lies or closes the connection."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from docker_service import FakeEngine

from polar.errors import RuntimeFailure
from polar.runtimes.base import Command, Program, SessionFolders
from polar.runtimes.docker import runtime as docker
from polar.runtimes.docker.options import DockerOptions
from polar.runtimes.docker.runtime import DockerRuntime
from polar.runtimes.host.processes import owner, owner_scope

HELLO = b"\x01\0\0\0\0\0\0\x03hi\n" + b"\x02\0\0\0\0\0\0\x02no"


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(tmp_path) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        yield engine


@pytest.fixture
def folders(tmp_path: Path) -> SessionFolders:
    return SessionFolders("s-1", tmp_path / "root", tmp_path / "logs")


async def started(folders: SessionFolders, **options: Any) -> DockerRuntime:
    runtime = DockerRuntime(DockerOptions.model_validate(options))
    await runtime.start(folders)
    return runtime


async def test_a_missing_engine_is_reported_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    lacking = await DockerRuntime.lacking()
    assert "unix:///nowhere/docker.sock" in lacking
    assert "`make docker`" in lacking
    assert await DockerRuntime.sweep() == 0


async def test_an_engine_of_another_machine_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@elsewhere")
    assert "ssh://me@elsewhere" in await DockerRuntime.lacking()


async def test_another_server_at_the_address_is_reported(engine: FakeEngine) -> None:
    assert await DockerRuntime.lacking() == ""
    engine.version = None
    assert "is not a Docker Engine" in await DockerRuntime.lacking()


async def test_a_missing_image_names_both_remedies_and_nothing_is_pulled(
    engine: FakeEngine, folders: SessionFolders
) -> None:
    engine.answers["GET /images/polar-base/json"] = (404, {"message": "No such image"})
    with pytest.raises(RuntimeFailure, match=r"'polar-base': `polar image build` .* `docker pull`"):
        await started(folders)
    assert not any(call.startswith("POST /images") for call in engine.asked)
    assert not folders.root.exists()


async def test_the_engines_own_words_are_passed_on(engine: FakeEngine, folders: SessionFolders) -> None:
    engine.answers["POST /containers/create"] = (400, {"message": "the disk is upside down"})
    with pytest.raises(RuntimeFailure, match="the disk is upside down"):
        await started(folders)
    assert not folders.root.exists()


@pytest.mark.parametrize("call", ["POST /containers/c1/start", "PUT /containers/c1/archive"])
async def test_a_start_that_fails_half_way_removes_the_container(
    engine: FakeEngine, folders: SessionFolders, tmp_path: Path, call: str
) -> None:
    (tmp_path / "base").mkdir()
    engine.answers[call] = (500, {"message": "no"})
    with pytest.raises(RuntimeFailure, match="no"):
        await started(SessionFolders("s-1", folders.root, folders.logs, base=tmp_path / "base"))
    assert "DELETE /containers/c1" in engine.asked


async def test_an_engine_that_cannot_hold_a_limit_is_not_trusted_with_it(
    engine: FakeEngine, folders: SessionFolders
) -> None:
    engine.answers["GET /info"] = (200, {"MemoryLimit": False, "PidsLimit": True})
    with pytest.raises(RuntimeFailure, match="does not enforce the limit memory_bytes"):
        await started(folders, limits={"memory_bytes": "64MiB", "pids": 10})
    assert "POST /containers/create" not in engine.asked


async def test_a_container_is_closed_and_carries_its_owner(
    engine: FakeEngine, folders: SessionFolders, tmp_path: Path
) -> None:
    program = Program("pi", tmp_path)
    runtime = await started(SessionFolders("s-1", folders.root, folders.logs, programs=(program,)))
    await runtime.stop()

    asked = engine.bodies["POST /containers/create"]
    assert asked["Labels"] == {
        "polar.session": "s-1",
        "polar.place": str(folders.root),
        "polar.owner": owner(),
        "polar.home": owner_scope(),
    }
    host = asked["HostConfig"]
    assert (host["NetworkMode"], host["CapDrop"], host["CapAdd"]) == ("none", ["ALL"], [])
    assert host["SecurityOpt"][0] == "no-new-privileges"
    assert host["SecurityOpt"][1].startswith('seccomp={"defaultAction":"SCMP_ACT_ERRNO"')
    assert host["Mounts"] == [
        {"Type": "bind", "Source": str(tmp_path), "Target": "/opt/polar/pi", "ReadOnly": True}
    ]
    assert runtime.program(program) == "/opt/polar/pi"


async def test_a_quota_is_passed_on_if_the_engine_enforces_it(engine: FakeEngine, folders: SessionFolders) -> None:
    runtime = await started(folders, quota=True, limits={"disk_bytes": "1GiB"})
    await runtime.stop()
    assert engine.bodies["POST /containers/create"]["HostConfig"]["StorageOpt"] == {"size": str(2**30)}


async def test_both_outputs_are_told_apart(engine: FakeEngine, folders: SessionFolders) -> None:
    engine.answers["POST /exec/e1/start"] = HELLO
    runtime = await started(folders)
    finished = await runtime.exec(Command(("greet",)))
    await runtime.stop()
    assert (finished.stdout_tail, finished.stderr_tail) == ("hi\n", "no")


@pytest.mark.parametrize("content", [HELLO[:4], HELLO[:-1], HELLO + b"\x01"])
async def test_output_that_breaks_off_is_a_failure_and_ends_the_command(
    engine: FakeEngine, folders: SessionFolders, content: bytes
) -> None:
    engine.answers["POST /exec/e1/start"] = content
    runtime = await started(folders)
    with pytest.raises(RuntimeFailure, match="in the middle of the output"):
        await runtime.exec(Command(("greet",)))
    assert "POST /containers/c1/kill" in engine.asked
    await runtime.stop()


async def test_a_command_that_the_engine_refuses_ends_nothing_else(
    engine: FakeEngine, folders: SessionFolders
) -> None:
    runtime = await started(folders)
    engine.answers["POST /exec/e1/start"] = (400, {"message": "exec: permission denied"})
    with pytest.raises(RuntimeFailure, match="cannot start 'greet': exec: permission denied"):
        await runtime.exec(Command(("greet",)))
    assert "POST /containers/c1/kill" not in engine.asked
    await runtime.stop()


@pytest.mark.parametrize("status", [404, 409])
async def test_a_container_that_somebody_else_removes_is_removed(
    engine: FakeEngine, folders: SessionFolders, status: int
) -> None:
    runtime = await started(folders)
    engine.answers["DELETE /containers/c1"] = (status, {"message": "already"})
    await runtime.stop()
    assert not folders.root.exists()


async def test_a_stop_that_fails_can_be_tried_again(engine: FakeEngine, folders: SessionFolders) -> None:
    runtime = await started(folders)
    engine.answers["DELETE /containers/c1"] = (500, {"message": "device or resource busy"})
    with pytest.raises(RuntimeFailure, match="busy"):
        await runtime.stop()
    del engine.answers["DELETE /containers/c1"]
    engine.asked.clear()
    await runtime.stop()
    await runtime.stop()
    assert engine.asked == ["DELETE /containers/c1"]


async def test_a_process_that_is_not_the_containers_gets_no_listener(
    engine: FakeEngine, folders: SessionFolders
) -> None:
    engine.answers["GET /containers/c1/json"] = (200, {"State": {"Pid": os.getpid()}})
    runtime = await started(folders)
    with pytest.raises(RuntimeFailure, match="the node does not see the processes"):
        await runtime.listener()
    await runtime.stop()


async def test_a_node_that_may_not_enter_says_what_to_do(
    engine: FakeEngine, folders: SessionFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await started(folders)
    monkeypatch.setattr(docker.os, "geteuid", lambda: 1000)
    with pytest.raises(RuntimeFailure, match="run the node as root, or choose another runtime"):
        await runtime.listener()
    await runtime.stop()


async def test_only_containers_of_dead_owners_seen_from_here_are_swept(engine: FakeEngine) -> None:
    owners = {"mine": owner(), "dead": f"{os.getpid()}.1", "strange": "x.y", "unnamed": ""}
    engine.answers["GET /containers/json"] = (
        200,
        [
            {"Id": name, "Labels": {"polar.home": owner_scope(), "polar.owner": mark}}
            for name, mark in owners.items()
        ],
    )
    assert await DockerRuntime.sweep() == 1
    assert [call for call in engine.asked if call.startswith("DELETE")] == ["DELETE /containers/dead"]


async def test_before_its_start_there_is_nothing_to_use_or_end(tmp_path: Path) -> None:
    runtime = DockerRuntime(DockerOptions())
    await runtime.kill()
    with pytest.raises(RuntimeFailure, match="not started"):
        await runtime.exec(Command(("true",)))
    await runtime.stop()


async def test_an_engine_whose_containers_are_not_seen_is_asked_about_the_memory(
    engine: FakeEngine, folders: SessionFolders
) -> None:
    runtime = await started(folders, limits={"memory_bytes": "64MiB"})
    engine.answers["GET /exec/e1/json"] = (200, {"Pid": 1, "ExitCode": 137})
    assert (await runtime.exec(Command(("hog",)))).memory_kills == 0
    engine.answers["GET /containers/c1/json"] = (200, {"State": {"Pid": 0, "OOMKilled": True}})
    assert (await runtime.exec(Command(("hog",)))).memory_kills == 1
    await runtime.stop()
