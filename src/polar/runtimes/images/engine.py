"""Images in the Docker Engine: loaded from a tar, recognized by its digest, and removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson

from polar.errors import RuntimeFailure
from polar.runtimes.docker.api import DockerApi, DockerRefused
from polar.runtimes.images.catalog import BaseImage

DIGEST_LABEL = "polar.image.sha256"
"""Digest of the tar that an image was loaded from, so that it is loaded once."""
ANSWER_LIMIT_S = 5.0


class EngineImages:
    def __init__(self, api: DockerApi) -> None:
        self._api = api
        self.address = api.address

    async def holds(self, image: BaseImage) -> bool:
        known = await self._known(image.name)
        return known is not None and _digest(known) == image.record.tar_sha256

    async def load(self, image: BaseImage) -> None:
        """As `<name>:latest`. Removes the image that had this name before, unless a container uses it."""
        before = await self._known(image.name)
        query = {
            "fromSrc": "-",
            "repo": image.name,
            "tag": "latest",
            "changes": f"LABEL {DIGEST_LABEL}={image.record.tar_sha256}",
        }
        with image.tar.open("rb") as tar:
            async with self._api.request("POST", "/images/create", query=query, body=tar, limit_s=None) as reply:
                _refuse_errors(await reply.read())
        after = await self._known(image.name)
        if after is None or _digest(after) != image.record.tar_sha256:
            raise RuntimeFailure(f"the Docker Engine at {self.address} accepted {image.tar} but does not have it")
        if before is not None and before["Id"] != after["Id"] and _digest(before):
            with suppress(DockerRefused):
                await self._api.call("DELETE", f"/images/{before['Id']}")

    async def refuse_if_taken(self, name: str) -> None:
        """Never replaces an image that was not built here."""
        known = await self._known(name)
        if known is not None and not _digest(known):
            raise RuntimeFailure(
                f"the Docker Engine at {self.address} has an image {name}:latest that was not built here:"
                " choose another name"
            )

    async def remove(self, name: str) -> bool:
        """Returns whether there was one that was built here. The Docker Engine refuses if a container uses it."""
        known = await self._known(name)
        if known is None or not _digest(known):
            return False
        await self._api.call("DELETE", f"/images/{name}:latest")
        return True

    async def _known(self, name: str) -> dict[str, Any] | None:
        try:
            return await self._api.call("GET", f"/images/{name}:latest/json")
        except DockerRefused as error:
            if error.status != 404:
                raise
            return None


@asynccontextmanager
async def engine_images() -> AsyncGenerator[EngineImages | None]:
    """Images of the machine's Docker Engine; None if none answers."""
    api = DockerApi()
    try:
        yield EngineImages(api) if await _answers(api) else None
    finally:
        await api.close()


async def _answers(api: DockerApi) -> bool:
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            await api.open()
    except (RuntimeFailure, TimeoutError):
        return False
    return True


def _digest(known: dict[str, Any]) -> str:
    config: dict[str, Any] = known.get("Config") or {}
    labels: dict[str, str] = config.get("Labels") or {}
    return labels.get(DIGEST_LABEL, "")


def _refuse_errors(reply: bytes) -> None:
    """The Docker Engine answers 200 before it has read the tar; later errors are in the lines of its reply."""
    for line in reply.splitlines():
        if line.strip() and "error" in (progress := orjson.loads(line)):
            raise RuntimeFailure(f"the Docker Engine cannot load the image: {progress['error']}")
