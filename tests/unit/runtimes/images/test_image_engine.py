"""Images in the Docker Engine, against a fake; tests with a real one are in `tests/integration`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from polar.errors import RuntimeFailure
from polar.runtimes.images.busybox import BUSYBOX
from polar.runtimes.images.catalog import BaseImage, ImageRecord
from polar.runtimes.images.engine import engine_images


class FakeEngine:
    """Holds images by name: an id and labels."""

    def __init__(self) -> None:
        self.images: dict[str, tuple[str, dict[str, str]]] = {}
        self.uploads: list[bytes] = []
        self.removed: list[str] = []
        self.in_use: set[str] = set()
        self.error = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/_ping", self._ping)
        app.router.add_post("/v1.41/images/create", self._create)
        app.router.add_get("/v1.41/images/{name}/json", self._inspect)
        app.router.add_delete("/v1.41/images/{name}", self._remove)
        return app

    async def _ping(self, request: web.Request) -> web.Response:
        return web.Response(text="OK", headers={"Api-Version": "1.41"})

    async def _create(self, request: web.Request) -> web.Response:
        self.uploads.append(await request.read())
        if self.error:
            return web.json_response({"errorDetail": {"message": self.error}, "error": self.error})
        assert request.query["fromSrc"] == "-"
        words = request.query["changes"].removeprefix("LABEL ").split()
        name = f"{request.query['repo']}:{request.query['tag']}"
        self.images[name] = (f"sha256:{len(self.uploads)}", dict(word.split("=", 1) for word in words))
        return web.Response(text='{"status":"sha256:1"}\r\n')

    async def _inspect(self, request: web.Request) -> web.Response:
        if request.match_info["name"] not in self.images:
            return web.json_response({"message": "no such image"}, status=404)
        known, labels = self.images[request.match_info["name"]]
        return web.json_response({"Id": known, "Config": {"Labels": labels or None}})

    async def _remove(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name in self.in_use:
            return web.json_response({"message": "image is being used by a container"}, status=409)
        self.removed.append(name)
        self.images.pop(name, None)
        return web.json_response([])


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeEngine]:
    fake = FakeEngine()
    runner = web.AppRunner(fake.app())
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "engine.sock")).start()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
    yield fake
    await runner.cleanup()


def image(tmp_path: Path, digest: str = "aa") -> BaseImage:
    record = ImageRecord(recipe=BUSYBOX, versions={}, tar_sha256=digest, tar_bytes=3, built=0.0)
    (tmp_path / "root.tar").write_bytes(b"tar")
    return BaseImage("tiny", tmp_path, record)


async def test_an_image_goes_in_and_is_known_again_by_its_digest(engine: FakeEngine, tmp_path: Path) -> None:
    async with engine_images() as images:
        assert images is not None and not await images.holds(image(tmp_path))
        await images.load(image(tmp_path))
        assert await images.holds(image(tmp_path))
        assert not await images.holds(image(tmp_path, digest="bb"))
    assert engine.uploads == [b"tar"]


async def test_what_had_the_name_before_goes(engine: FakeEngine, tmp_path: Path) -> None:
    async with engine_images() as images:
        assert images is not None
        await images.load(image(tmp_path))
        await images.load(image(tmp_path, digest="bb"))
    assert engine.removed == ["sha256:1"]


async def test_what_a_container_runs_on_stays(engine: FakeEngine, tmp_path: Path) -> None:
    engine.in_use = {"sha256:1", "tiny:latest"}
    async with engine_images() as images:
        assert images is not None
        await images.load(image(tmp_path))
        await images.load(image(tmp_path, digest="bb"))
        with pytest.raises(RuntimeFailure, match="being used by a container"):
            await images.remove("tiny")
    assert engine.removed == []


async def test_an_image_that_is_not_ours_is_left_alone(engine: FakeEngine) -> None:
    engine.images["tiny:latest"] = ("sha256:9", {})
    async with engine_images() as images:
        assert images is not None
        assert not await images.remove("tiny")
        assert not await images.remove("absent")
        with pytest.raises(RuntimeFailure, match="that was not built here: choose another name"):
            await images.refuse_if_taken("tiny")
        await images.refuse_if_taken("absent")
    assert engine.removed == []


async def test_an_error_in_the_middle_of_the_reply_is_heard(engine: FakeEngine, tmp_path: Path) -> None:
    engine.error = "unexpected EOF"
    async with engine_images() as images:
        assert images is not None
        with pytest.raises(RuntimeFailure, match="cannot load the image: unexpected EOF"):
            await images.load(image(tmp_path))


async def test_where_none_answers_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    async with engine_images() as images:
        assert images is None
