"""Images that a Docker Engine does not have, pulled from a registry on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from docker_machine import StartDocker, sh
from loopback_registry import LoopbackRegistry

from polar.config import PermitConfig
from polar.errors import RuntimeFailure
from polar.runtimes.docker.api import DockerApi, DockerRefused, connected
from polar.runtimes.docker.images import SessionImages
from polar.runtimes.docker.options import DockerOptions

pytestmark = pytest.mark.check
MISSING = PermitConfig(pull="missing")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
async def api(docker_engine: str | None) -> AsyncIterator[DockerApi]:
    async with connected(docker_engine) as api:
        yield api


@pytest.fixture
async def registry(api: DockerApi) -> AsyncIterator[LoopbackRegistry]:
    async with LoopbackRegistry() as registry:
        yield registry
        try:
            await api.call("DELETE", f"/images/{registry.image}", query={"force": "true"})
        except DockerRefused as error:
            if error.status != 404:
                raise


async def test_a_missing_image_is_pulled_and_the_session_runs_in_it(
    registry: LoopbackRegistry, start_docker: StartDocker
) -> None:
    runtime = await start_docker(image=registry.image, permits=MISSING)
    assert (await runtime.exec(sh("echo $PULLED"))).stdout_tail == "yes\n"
    assert registry.layers_read == 1


async def test_sessions_that_start_together_pull_it_once(registry: LoopbackRegistry, api: DockerApi) -> None:
    told: list[str] = []
    options = DockerOptions(image=registry.image)
    registry.may_go_on.clear()
    images = [asyncio.ensure_future(SessionImages(api, MISSING, told.append).image_for(options)) for _ in range(4)]
    asyncio.get_running_loop().call_later(0.5, registry.may_go_on.set)
    assert {image.name for image in await asyncio.gather(*images)} == {registry.image}
    assert told.count(f"Pulling {registry.image}") == registry.layers_read == 1
    assert told[-1] == f"Pulling {registry.image}: 1 of 1 layers"


async def test_nothing_is_pulled_by_default(registry: LoopbackRegistry, api: DockerApi) -> None:
    with pytest.raises(RuntimeFailure, match=r'or set permits\.pull = "missing" on the node'):
        await SessionImages(api, PermitConfig(), print).image_for(DockerOptions(image=registry.image))
    assert registry.served == []


async def test_an_image_that_the_registry_lacks_is_named_with_the_fix(
    registry: LoopbackRegistry, api: DockerApi
) -> None:
    wrong = registry.image.replace("1.0", "2.0")
    with pytest.raises(RuntimeFailure, match=r"cannot pull '127.*2\.0': .*check its name, or use `docker pull`"):
        await SessionImages(api, MISSING, print).image_for(DockerOptions(image=wrong))


async def test_the_base_of_a_dockerfile_is_pulled_too(
    registry: LoopbackRegistry, api: DockerApi, tmp_path: Path
) -> None:
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "Dockerfile").write_text(f"FROM {registry.image}\nENV BUILT=yes\n")
    options = DockerOptions.model_validate({"build": {"context": str(tmp_path / "context")}})
    permits = PermitConfig(build=True, pull="missing")
    image = await SessionImages(api, permits, print).image_for(options)
    try:
        assert {"PULLED=yes", "BUILT=yes"} <= set(image.config["Env"])
    finally:
        await api.call("DELETE", f"/images/{image.name}", query={"force": "true"})
