"""Where Podman's service differs from Docker's, with a fake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from docker_service import FakeEngine

from polar.errors import RuntimeFailure
from polar.runtimes.base import Command, SessionFolders
from polar.runtimes.docker.options import DockerOptions
from polar.runtimes.docker.runtime import DockerRuntime

IMPROPER = (500, {"message": "can only create exec sessions on running containers: container state improper"})
ENDING = b"Error: runc: exec failed: error executing setns process: OCI runtime error\n"


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(tmp_path) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        yield engine


@pytest.fixture
async def start(engine: FakeEngine, tmp_path: Path) -> AsyncIterator[Any]:
    started: list[DockerRuntime] = []

    async def start(**options: Any) -> DockerRuntime:
        started.append(DockerRuntime(DockerOptions.model_validate(options)))
        await started[-1].start(SessionFolders("s-1", tmp_path / "root", tmp_path / "logs"))
        engine.asked.clear()
        return started[-1]

    yield start
    for runtime in started:
        await runtime.stop()


def on_stderr(text: bytes) -> bytes:
    return b"\x02\0\0\0" + len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize("path", ["link", "link/below", "chain"])
async def test_a_link_out_to_nothing_is_refused_and_not_taken_for_missing(
    engine: FakeEngine, start: Any, path: str, tmp_path: Path
) -> None:
    runtime = await start()
    engine.links = {"/work/link": "/tmp/x", "/work/chain": "/work/link"}
    for call in (
        runtime.put(path, b""),
        runtime.get(path),
        runtime.put_folder(tmp_path, path),
        runtime.fetch(path, tmp_path / "out", cap_bytes=1),
    ):
        with pytest.raises(RuntimeFailure, match="leads out of its folder"):
            await call
    assert not any(call.startswith(("PUT", "GET /containers/c1/archive")) for call in engine.asked)


async def test_a_container_that_ended_by_itself_is_started_again(engine: FakeEngine, start: Any) -> None:
    runtime = await start()
    engine.answers["POST /containers/c1/exec"] = [IMPROPER, (201, {"Id": "e1"})]
    assert (await runtime.exec(Command(("true",)))).exit_code == 0
    assert engine.asked.count("POST /containers/c1/start") == 1


async def test_a_command_that_meets_the_end_of_its_container_is_run_again(engine: FakeEngine, start: Any) -> None:
    runtime = await start()
    engine.answers["POST /exec/e1/start"] = on_stderr(ENDING)
    engine.answers["GET /exec/e1/json"] = [(200, {"Pid": 0, "ExitCode": 125}), (200, {"Pid": 0, "ExitCode": 0})]
    assert (await runtime.exec(Command(("true",)))).exit_code == 0
    assert engine.asked.count("POST /containers/c1/start") == 1


@pytest.mark.parametrize("said", [b"", b"trying it\nError: OCI runtime error\n"])
async def test_a_program_that_says_125_itself_has_run(engine: FakeEngine, start: Any, said: bytes) -> None:
    runtime = await start()
    engine.answers["POST /exec/e1/start"] = on_stderr(said)
    engine.answers["GET /exec/e1/json"] = (200, {"Pid": 0, "ExitCode": 125})
    assert (await runtime.exec(Command(("git", "bisect")))).exit_code == 125


async def test_a_command_that_ended_with_its_container_was_killed(engine: FakeEngine, start: Any) -> None:
    runtime = await start()
    engine.answers["GET /exec/e1/json"] = (200, {"Pid": 0, "ExitCode": -1})
    assert (await runtime.exec(Command(("kill", "-9", "-1")))).exit_code == 137


@pytest.mark.parametrize(
    ("of_image", "asked"),
    [({}, None), ({"Healthcheck": {"Test": ["CMD", "curl", "localhost"]}}, {"Test": ["NONE"]})],
)
async def test_an_images_health_check_is_switched_off_and_none_is_made_up(
    engine: FakeEngine, start: Any, of_image: dict[str, Any], asked: dict[str, Any] | None
) -> None:
    engine.answers["GET /images/polar-base/json"] = (200, {"Config": of_image})
    await start()
    assert engine.bodies["POST /containers/create"].get("Healthcheck") == asked


@pytest.mark.parametrize("rootless", [{"Rootless": True}, {"SecurityOptions": ["name=seccomp", "name=rootless"]}])
async def test_limits_that_would_be_ignored_without_root_are_refused(
    engine: FakeEngine, start: Any, rootless: dict[str, Any]
) -> None:
    """With cgroup v1 it claims to have limits and ignores them."""
    engine.answers["GET /info"] = (200, {"MemoryLimit": True, "PidsLimit": True, "CgroupVersion": "1", **rootless})
    with pytest.raises(RuntimeFailure, match="does not enforce the limit memory_bytes, pids"):
        await start(limits={"memory_bytes": "64MiB", "pids": 10})
    assert "POST /containers/create" not in engine.asked

    engine.answers["GET /info"] = (200, {"MemoryLimit": True, "PidsLimit": True, "CgroupVersion": "2", **rootless})
    await start(limits={"memory_bytes": "64MiB", "pids": 10})


async def test_more_cpus_than_there_are_is_refused_whatever_the_engine_thinks(
    engine: FakeEngine, start: Any
) -> None:
    engine.answers["GET /info"] = (200, {"CpuCfsQuota": True, "NCPU": 2})
    with pytest.raises(RuntimeFailure, match=r"the limit is 2\.5 CPUs, but the machine has 2"):
        await start(limits={"cpus": 2.5})
    await start(limits={"cpus": 2})
