"""The network of prepare steps, with a fake Docker Engine: what is called, and an engine that does not obey."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from docker_service import FakeEngine

from polar.config import PermitConfig
from polar.errors import RuntimeFailure
from polar.runtimes.base import SessionFolders
from polar.runtimes.docker.options import DockerOptions
from polar.runtimes.docker.runtime import DockerRuntime

NETWORKS = "/networks/"


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(tmp_path) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        yield engine


@pytest.fixture
async def runtime(engine: FakeEngine, tmp_path: Path) -> AsyncIterator[DockerRuntime]:
    runtime = DockerRuntime(DockerOptions(prepare_network="open"))
    permits = PermitConfig(prepare_network=True)
    await runtime.start(SessionFolders("s-1", tmp_path / "root", tmp_path / "logs", permits=permits))
    yield runtime
    await runtime.stop()


def in_networks(engine: FakeEngine, *names: str) -> None:
    settings: dict[str, Any] = {"Networks": {name: {} for name in names}}
    engine.answers["GET /containers/c1/json"] = (200, {"State": {"Pid": 0}, "NetworkSettings": settings})


async def test_the_container_is_created_without_network_and_moved_while_it_does_not_run(
    engine: FakeEngine, runtime: DockerRuntime
) -> None:
    assert engine.bodies["POST /containers/create"]["HostConfig"]["NetworkMode"] == "none"
    in_networks(engine, "none")
    await runtime.prepared()
    moves = [call for call in engine.asked if NETWORKS in call or call.endswith(("/start", "/kill"))]
    assert moves == [
        "POST /networks/none/disconnect",
        "POST /networks/bridge/connect",
        "POST /containers/c1/start",
        "POST /containers/c1/kill",
        "POST /networks/bridge/disconnect",
        "POST /networks/none/connect",
        "POST /containers/c1/start",
    ]


async def test_a_second_call_changes_nothing(engine: FakeEngine, runtime: DockerRuntime) -> None:
    in_networks(engine, "none")
    await runtime.prepared()
    engine.asked.clear()
    await runtime.prepared()
    assert engine.asked == []


async def test_an_engine_that_keeps_the_network_open_ends_the_session(
    engine: FakeEngine, runtime: DockerRuntime
) -> None:
    in_networks(engine, "bridge", "none")
    with pytest.raises(RuntimeFailure, match="did not close the network bridge after prepare"):
        await runtime.prepared()
    assert [call for call in engine.asked if call.endswith("/kill")] == ["POST /containers/c1/kill"] * 2


async def test_no_listener_is_opened_before_the_end_of_prepare(runtime: DockerRuntime) -> None:
    with pytest.raises(RuntimeFailure, match="still open"):
        await runtime.listener()
