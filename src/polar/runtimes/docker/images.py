"""The image of a session: one that the Docker Engine has, one that it pulls, or one that it builds for the task.

Each image is pulled or built once: sessions that need it meanwhile wait, also those of other processes. A built
image is tagged with the digest of all it was made of, so the same content is not built again.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import IO, Any

import aiohttp
import orjson

from polar.config import PermitConfig, cache_dir
from polar.errors import NotPermitted, RuntimeFailure
from polar.runtimes.docker.api import DockerApi, DockerRefused
from polar.runtimes.docker.build_context import digest_of, pack_context
from polar.runtimes.docker.dockerfile import Downloads, downloads_of
from polar.runtimes.docker.options import DockerBuild, DockerOptions, EngineImage
from polar.runtimes.host.threads import in_thread
from polar.runtimes.images.catalog import note_use
from polar.store.cache import exclusive_lock
from polar.store.private import FILE

REPOSITORY = "polar-task"
TASK_LABEL = "polar.task-image"
"""Of a built image: the digest of what it was made of."""
SHOWN_LINES = 15
Tell = Callable[[str], None]


def task_images_dir() -> Path:
    """Logs of the builds, one for each image; the time of a file is that of the last use."""
    return cache_dir() / "task-images"


class SessionImages:
    """Finds images in a Docker Engine, and gets those that are missing if the operator permits it."""

    def __init__(self, api: DockerApi, permits: PermitConfig, tell: Tell) -> None:
        self._api = api
        self._permits = permits
        self._tell = tell

    async def image_for(self, options: DockerOptions) -> EngineImage:
        if options.build is None:
            found = await self._found_or_pulled(options.image)
            note_use(options.image.removesuffix(":latest"))
            return EngineImage(options.image, found["Config"] or {})
        if not self._permits.build:
            raise NotPermitted("build: the node's setting permits.build is off")
        with tempfile.TemporaryFile() as tar:
            return await self._built(options.build, tar)

    async def _find(self, name: str) -> dict[str, Any] | None:
        try:
            return await self._api.call("GET", f"/images/{name}/json")
        except DockerRefused as error:
            if error.status != 404:
                raise
            return None

    async def _found_or_pulled(self, name: str) -> dict[str, Any]:
        if (found := await self._find(name)) is not None:
            return found
        if self._permits.pull == "never":
            raise RuntimeFailure(
                f"the Docker Engine has no image {name!r}: `polar image build` builds one, `docker pull` gets one;"
                ' or set permits.pull = "missing" on the node'
            )
        async with exclusive_lock(cache_dir() / "pulls" / hashlib.sha256(name.encode()).hexdigest()[:32]):
            if (found := await self._find(name)) is None:  # no other session has pulled it meanwhile
                await self._pull(name)
                found = await self._find(name)
        if found is None:
            raise RuntimeFailure(f"the Docker Engine pulled {name!r} but does not have it")
        return found

    async def _pull(self, name: str) -> None:
        self._tell(f"Pulling {name}")
        layers: dict[str, bool] = {}
        try:
            async for line in self._lines("/images/create", query_of(name), None):
                status = str(line.get("status"))
                if (layer := line.get("id")) and not status.startswith("Pulling from"):  # that line names the tag
                    layers[layer] = status in ("Pull complete", "Already exists")
                    self._tell(f"Pulling {name}: {sum(layers.values())} of {len(layers)} layers")
        except RuntimeFailure as error:
            raise RuntimeFailure(
                f"cannot pull {name!r}: {error}; check its name, or use `docker pull`, which can also log in to a"
                " registry"
            ) from error

    async def _built(self, build: DockerBuild, tar: IO[bytes]) -> EngineImage:
        text = await in_thread(pack_context, build, tar)
        downloads = downloads_of(text, build.args)
        self._check_addresses(downloads)
        bases = {name: (await self._found_or_pulled(name))["Id"] for name in downloads.images}
        digest = await in_thread(digest_of, tar, build, bases)
        name, log = f"{REPOSITORY}:{digest}", task_images_dir() / f"{digest}.log"
        found = await self._find(name)
        if found is None:
            async with exclusive_lock(task_images_dir() / digest):
                if (found := await self._find(name)) is None:  # no other session has built it meanwhile
                    await self._build(name, build, tar, log)
                    found = await self._find(name)
        if found is None:
            raise RuntimeFailure(f"the Docker Engine built {name!r} but does not have it")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch(mode=FILE)
        return EngineImage(name, found["Config"] or {})

    def _check_addresses(self, downloads: Downloads) -> None:
        if downloads.addresses and not self._permits.build_network:
            raise NotPermitted(
                f"build: ADD {downloads.addresses[0]} may need the network, and the node's setting"
                " permits.build_network is off"
            )

    async def _build(self, name: str, build: DockerBuild, tar: IO[bytes], log: Path) -> None:
        self._tell(f"Building {name} from {build.context}")
        last: deque[str] = deque(maxlen=SHOWN_LINES)
        digest = name.partition(":")[2]
        query = {
            "t": name,
            "dockerfile": build.dockerfile,
            "buildargs": orjson.dumps(build.args).decode(),
            "labels": orjson.dumps({TASK_LABEL: digest}).decode(),
            "rm": "true",
            "forcerm": "true",
            **({"target": build.target} if build.target else {}),
            **({} if self._permits.build_network else {"networkmode": "none"}),
        }
        try:
            log.touch(mode=FILE)
            with log.open("w", encoding="utf-8") as file:
                async for line in self._lines("/build", query, tar):
                    text = str(line.get("stream") or "")
                    file.write(text)
                    last += [part for part in text.splitlines() if part.strip()]
        except RuntimeFailure as error:
            shown = "\n".join(last)
            raise RuntimeFailure(
                f"cannot build {build.dockerfile} of {build.context}: {error}{self._hint()}; the end of its log,"
                f" {log}:\n{shown}"
            ) from error

    def _hint(self) -> str:
        return "" if self._permits.build_network else " (it had no network: permits.build_network is off)"

    async def _lines(
        self, path: str, query: dict[str, str], body: IO[bytes] | None
    ) -> AsyncGenerator[dict[str, Any]]:
        """Progress of a long call. The Docker Engine answers 200 before it begins; later errors are in the
        lines."""
        async with (
            self._api.request("POST", path, query=query, body=body, limit_s=None) as reply,
            aclosing(_split_lines(reply.content)) as lines,
        ):
            async for line in lines:
                progress = orjson.loads(line)
                if "error" in progress:
                    raise RuntimeFailure(str(progress["error"]))
                yield progress


async def _split_lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    """Of any length: a line of a build holds what a command printed."""
    left = b""
    async for piece in content.iter_any():
        *lines, left = (left + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
    if left.strip():
        yield left


def query_of(name: str) -> dict[str, str]:
    """Of a pull. Without a tag the Docker Engine would pull all of them."""
    if "@" in name:
        return {"fromImage": name}
    before, colon, tag = name.rpartition(":")
    return {"fromImage": before, "tag": tag} if colon and "/" not in tag else {"fromImage": name, "tag": "latest"}
