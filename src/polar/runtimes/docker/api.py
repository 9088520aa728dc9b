"""A client of the Docker Engine API, which Podman's service also implements.

The Docker Engine has to be on the node's own machine: programs are mounted from the node's folders, and the
gateway listens in the containers' networks. So its address is a socket, or a port without TLS.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import IO, Any

import aiohttp
import orjson

from polar.errors import RuntimeFailure

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
CALL_LIMIT_S = 120.0
"""A call without an answer by then has failed."""
CONNECT_LIMIT_S = 10.0
PIECE_BYTES = 2**16


class DockerRefused(RuntimeFailure):
    """The Docker Engine answered with an error."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class DockerApi:
    """A connection to one Docker Engine; create it inside the event loop, and close it."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address or os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS
        kind, _, rest = self.address.partition("://")
        if kind == "unix":
            connector, self._base = aiohttp.UnixConnector(rest, limit=0), "http://docker"
        elif kind in ("tcp", "http"):
            connector, self._base = aiohttp.TCPConnector(limit=0), f"http://{rest}"
        else:
            raise RuntimeFailure(f"{self.address!r} is not the address of a Docker Engine: use unix:// or tcp://")
        self._http = aiohttp.ClientSession(connector=connector)
        self.is_podman = False
        """Known after `open`."""

    async def open(self) -> None:
        """Switches to the API version of the Docker Engine."""
        async with self.request("GET", "/_ping") as response:
            version = response.headers.get("Api-Version")
            self.is_podman = "Libpod-Api-Version" in response.headers
        if version is None:
            raise RuntimeFailure(f"the server at {self.address} is not a Docker Engine")
        self._base += f"/v{version}"

    async def close(self) -> None:
        await self._http.close()

    async def call(
        self, method: str, path: str, *, query: dict[str, str] | None = None, body: dict[str, Any] | None = None
    ) -> Any:
        """The reply's JSON; None if it has none."""
        async with self.request(method, path, query=query, body=body) as response:
            content = await response.read()
        return orjson.loads(content) if content[:1] in (b"{", b"[") else None

    async def upload(self, path: str, query: dict[str, str], tar: IO[bytes]) -> None:
        async with self.request("PUT", path, query=query, body=tar, limit_s=None):
            pass

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: dict[str, Any] | IO[bytes] | None = None,
        limit_s: float | None = CALL_LIMIT_S,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """A reply to be read in parts. `limit_s`: None for a call that takes as long as its data."""
        if self._http.closed:
            raise RuntimeFailure("the runtime is stopped")
        data = orjson.dumps(body) if isinstance(body, dict) else body
        kind = "application/json" if isinstance(body, dict) else "application/x-tar"
        try:
            async with self._http.request(
                method,
                self._base + path,
                params=query,
                data=data,
                headers={} if data is None else {"Content-Type": kind},
                timeout=aiohttp.ClientTimeout(total=limit_s, sock_connect=CONNECT_LIMIT_S),
            ) as response:
                if response.status >= 400:
                    message = _message(response.status, await response.read())
                    raise DockerRefused(response.status, message, response.headers)
                yield response
        except TimeoutError as error:  # not the caller's deadline, which cancels
            raise RuntimeFailure(f"the Docker Engine at {self.address} does not answer") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise RuntimeFailure(f"cannot reach the Docker Engine at {self.address}: {error}") from error


@asynccontextmanager
async def connected(address: str | None = None) -> AsyncGenerator[DockerApi]:
    api = DockerApi(address)
    try:
        await api.open()
        yield api
    finally:
        await api.close()


def _message(status: int, content: bytes) -> str:
    try:
        return str(orjson.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace").strip()[:500] or f"the Docker Engine answered with status {status}"
