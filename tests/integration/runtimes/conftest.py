"""A real Docker Engine, an image of this machine's own programs, and containers that are removed afterwards."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from docker_machine import StartDocker, root_tar

from polar.config import PermitConfig
from polar.runtimes.base import Program, SessionFolders
from polar.runtimes.bubblewrap.runtime import BubblewrapRuntime
from polar.runtimes.docker.api import connected
from polar.runtimes.docker.options import DockerOptions
from polar.runtimes.docker.runtime import DockerRuntime
from skips import skip_without_runtime


@pytest.fixture(scope="session", autouse=True)
def chosen_engine() -> Iterator[str | None]:
    """POLAR_TEST_ENGINE is the address of the tested Docker Engine; by default the machine's usual one."""
    address = os.environ.get("POLAR_TEST_ENGINE")
    with pytest.MonkeyPatch.context() as patch:
        if address is not None:
            patch.setenv("DOCKER_HOST", address)
        yield address


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    skip_without_runtime("bubblewrap", asyncio.run(BubblewrapRuntime.lacking()))


@pytest.fixture(scope="session")
def docker_engine(chosen_engine: str | None) -> str | None:
    """The address of a Docker Engine on this machine; None: the usual one. A chosen one must exist."""
    if missing := asyncio.run(DockerRuntime.lacking()):
        assert chosen_engine is None, missing
        skip_without_runtime("docker", missing)
    return chosen_engine


@pytest.fixture(scope="session")
def docker_image(docker_engine: str | None) -> Iterator[str]:
    """A few programs of this machine with their libraries: nothing is downloaded."""
    name = f"polar-test-{uuid.uuid4().hex[:12]}"

    async def create() -> None:
        query = {"fromSrc": "-", "repo": name, "tag": "latest"}
        async with (
            connected(docker_engine) as api,
            api.request("POST", "/images/create", query=query, body=root_tar()) as response,
        ):
            assert b"errorDetail" not in await response.read()

    async def remove() -> None:
        async with connected(docker_engine) as api:
            await api.call("DELETE", f"/images/{name}", query={"force": "true"})

    asyncio.run(create())
    yield name
    asyncio.run(remove())


@pytest.fixture
async def start_docker(docker_engine: str | None, docker_image: str, tmp_path: Path) -> AsyncIterator[StartDocker]:
    """Starts a session in a container of its own; takes the runtime's options, and `base`, `programs` and
    `permits`."""
    started: list[DockerRuntime] = []

    async def start(
        base: Path | None = None,
        programs: tuple[Program, ...] = (),
        permits: PermitConfig | None = None,
        **options: Any,
    ) -> DockerRuntime:
        options = {"image": docker_image, "engine": docker_engine, "output_cap_bytes": 1000, **options}
        runtime = DockerRuntime(DockerOptions.model_validate(options))
        folder = tmp_path / f"session-{len(started)}"
        started.append(runtime)
        given = SessionFolders(f"s-{uuid.uuid4().hex}", folder / "root", folder / "logs", base, programs)
        await runtime.start(msgspec.structs.replace(given, permits=permits or PermitConfig()))
        return runtime

    yield start
    for runtime in started:
        await runtime.stop()
