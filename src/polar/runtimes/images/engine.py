"""Images as a container engine holds them: brought in from a tar, known again by its digest, and taken out."""

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
"""Of the tar an image came from, so that it is brought in once."""
ANSWER_LIMIT_S = 5.0


class EngineImages:
    def __init__(self, api: DockerApi) -> None:
        self._api = api
        self.address = api.address

    async def holds(self, image: BaseImage) -> bool:
        known = await self._known(image.name)
        return known is not None and _digest(known) == image.record.tar_sha256

    async def bring_in(self, image: BaseImage) -> None:
        """Under `<name>:latest`. What had that name before goes, unless a container needs it."""
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
            raise RuntimeFailure(f"the engine at {self.address} took {image.tar} and does not have it")
        if before is not None and before["Id"] != after["Id"] and _digest(before):
            with suppress(DockerRefused):
                await self._api.call("DELETE", f"/images/{before['Id']}")

    async def refuse_if_taken(self, name: str) -> None:
        """An image that somebody else made keeps its name."""
        known = await self._known(name)
        if known is not None and not _digest(known):
            raise RuntimeFailure(
                f"the engine at {self.address} has an image {name}:latest that was not built here:"
                " choose another name"
            )

    async def take_out(self, name: str) -> bool:
        """Whether there was one of ours. One that a container still needs is refused by the engine."""
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
    """Those of the machine's engine; None where none answers."""
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
    """The engine says that all is well before it has read the tar; what comes after is in its lines."""
    for line in reply.splitlines():
        if line.strip() and "error" in (told := orjson.loads(line)):
            raise RuntimeFailure(f"the engine cannot take the image: {told['error']}")
