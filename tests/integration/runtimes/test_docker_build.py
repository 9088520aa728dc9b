"""A Dockerfile of a task, built by a real Docker Engine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from docker_machine import sh

from polar.config import PermitConfig
from polar.errors import NotPermitted, RuntimeFailure
from polar.runs.prune import find_prunable, prune
from polar.runtimes.base import SessionFolders
from polar.runtimes.docker.api import DockerApi, DockerRefused, connected
from polar.runtimes.docker.images import TASK_LABEL, SessionImages, task_images_dir
from polar.runtimes.docker.options import DockerOptions, EngineImage
from polar.runtimes.docker.runtime import DockerRuntime

pytestmark = pytest.mark.check

BuildImage = Callable[..., Awaitable[EngineImage]]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
async def api(docker_engine: str | None) -> AsyncIterator[DockerApi]:
    async with connected(docker_engine) as api:
        yield api


@pytest.fixture
async def build_image(api: DockerApi, tmp_path: Path) -> AsyncIterator[BuildImage]:
    """Builds a Dockerfile with this text; the images are removed afterwards."""
    built: set[str] = set()
    (tmp_path / "context").mkdir()

    async def build(text: str, tell: Callable[[str], None] = lambda _: None, **permits: Any) -> EngineImage:
        file = tmp_path / "context" / "Dockerfile"
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
        options = DockerOptions.model_validate({"build": {"context": str(tmp_path / "context")}})
        images = SessionImages(api, PermitConfig.model_validate({"build": True, **permits}), tell)
        image = await images.image_for(options)
        built.add(image.name)
        return image

    yield build
    for name in built:
        with suppress(DockerRefused):  # a test has removed it
            await api.call("DELETE", f"/images/{name}", query={"force": "true"})


async def test_a_session_runs_in_the_image_of_its_dockerfile(
    docker_engine: str | None, docker_image: str, tmp_path: Path, api: DockerApi
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM {docker_image}\nCOPY data.txt /work/\nENV COLOUR=red\n")
    (context / "data.txt").write_text("from the context")
    options = DockerOptions.model_validate({"build": {"context": str(context)}, "engine": docker_engine})
    runtime = DockerRuntime(options)
    permits = PermitConfig(build=True)
    try:
        await runtime.start(SessionFolders("s-build", tmp_path / "root", tmp_path / "logs", permits=permits))
        shown = await runtime.exec(sh("cat data.txt; echo; echo $COLOUR"))
        assert shown.stdout_tail == "from the context\nred\n"
    finally:
        await runtime.stop()
        name = (await SessionImages(api, permits, lambda _: None).image_for(options)).name
        await api.call("DELETE", f"/images/{name}", query={"force": "true"})


async def test_the_same_content_is_built_once_even_for_sessions_that_start_together(
    build_image: BuildImage, docker_image: str, api: DockerApi
) -> None:
    told: list[str] = []
    text = f"FROM {docker_image}\nRUN echo {time.time_ns()} > /made\n"
    images = await asyncio.gather(*(build_image(text, told.append) for _ in range(4)))
    assert len({image.name for image in images}) == 1
    assert len(told) == 1
    (name,) = {image.name for image in images}
    labels = (await api.call("GET", f"/images/{name}/json"))["Config"]["Labels"]
    assert labels[TASK_LABEL] == name.partition(":")[2]


async def test_other_content_is_another_image(build_image: BuildImage, docker_image: str, tmp_path: Path) -> None:
    text = f"FROM {docker_image}\nCOPY a.txt /a.txt\n"
    (tmp_path / "context" / "a.txt").write_text("1")
    first = await build_image(text)
    (tmp_path / "context" / "a.txt").write_text("2")
    assert await build_image(text) != first


async def test_a_failed_build_shows_the_end_of_its_log_and_keeps_it(
    build_image: BuildImage, docker_image: str
) -> None:
    text = f"FROM {docker_image}\nRUN echo the cause {time.time_ns()}; exit 3\n"
    with pytest.raises(RuntimeFailure, match=r"(?s)returned a non-zero code: 3.*build_network is off.*the cause"):
        await build_image(text)
    (log,) = task_images_dir().glob("*.log")
    assert "the cause" in log.read_text()


async def test_a_build_has_no_network_unless_it_is_permitted(build_image: BuildImage, docker_image: str) -> None:
    def looking(at: int) -> str:
        return f"FROM {docker_image}\nRUN case $(cat /proc/net/dev) in *eth0*) exit 7;; esac # {at}\n"

    await build_image(looking(time.time_ns()))
    with pytest.raises(RuntimeFailure, match="non-zero code: 7"):
        await build_image(looking(time.time_ns()), build_network=True)


async def test_the_operator_has_to_permit_builds(build_image: BuildImage, docker_image: str) -> None:
    with pytest.raises(NotPermitted, match=r"permits\.build is off"):
        await build_image(f"FROM {docker_image}\n", build=False)


async def test_nothing_is_downloaded_without_permission(build_image: BuildImage) -> None:
    with pytest.raises(RuntimeFailure, match=r"no image 'localhost:1/none:1'.*permits\.pull"):
        await build_image("FROM localhost:1/none:1\n")
    with pytest.raises(NotPermitted, match=r"ADD http://localhost:1/x .*permits\.build_network is off"):
        await build_image("FROM scratch\nADD http://localhost:1/x /x\n")


async def test_an_image_that_was_not_used_for_long_is_pruned_unless_a_container_has_it(
    build_image: BuildImage, docker_image: str, api: DockerApi, tmp_path: Path
) -> None:
    image = await build_image(f"FROM {docker_image}\nENV A={time.time_ns()}\n")
    log = task_images_dir() / f"{image.name.partition(':')[2]}.log"
    os.utime(log, (0, 0))
    body = {"Image": image.name, "Entrypoint": ["true"]}
    container = (await api.call("POST", "/containers/create", body=body))["Id"]
    assert image.name not in {each.name for each in await find_prunable(tmp_path, 86400)}
    await api.call("DELETE", f"/containers/{container}")
    chosen = [each for each in await find_prunable(tmp_path, 86400) if each.name == image.name]
    assert len(chosen) == 1 and chosen[0].size_bytes > 0
    assert await prune(chosen) == {}
    assert not log.exists()
    with pytest.raises(DockerRefused):
        await api.call("GET", f"/images/{image.name}/json")
