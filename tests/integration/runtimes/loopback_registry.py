"""A registry with one image on loopback: the part of the distribution API that a pull uses."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from typing import Any

import orjson
from aiohttp import web
from docker_machine import root_tar

TYPES = "application/vnd.docker."


class LoopbackRegistry:
    """`image` is its name for a Docker Engine on this machine, which needs no TLS for loopback."""

    def __init__(self) -> None:
        tar = root_tar().getvalue()
        self._blobs: dict[str, bytes] = {}
        layer = self._add(gzip.compress(tar, 1))
        self._layer = layer["digest"]
        diff = f"sha256:{hashlib.sha256(tar).hexdigest()}"
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin", "PULLED=yes"]},
            "rootfs": {"type": "layers", "diff_ids": [diff]},
        }
        described = self._add(orjson.dumps(config))
        self._manifest = orjson.dumps(
            {
                "schemaVersion": 2,
                "mediaType": f"{TYPES}distribution.manifest.v2+json",
                "config": {"mediaType": f"{TYPES}container.image.v1+json", **described},
                "layers": [{"mediaType": f"{TYPES}image.rootfs.diff.tar.gzip", **layer}],
            }
        )
        self.served: list[str] = []
        """Paths of all requests."""
        self.may_go_on = asyncio.Event()
        """Cleared: manifests wait."""
        self.may_go_on.set()
        self._runner = web.AppRunner(self._app())
        self.image = ""

    async def __aenter__(self) -> LoopbackRegistry:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.image = f"127.0.0.1:{port}/team/tools:1.0"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def layers_read(self) -> int:
        return self.served.count(f"GET /v2/team/tools/blobs/{self._layer}")

    def _add(self, content: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self._blobs[digest] = content
        return {"digest": digest, "size": len(content)}

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v2/", self._answer)
        app.router.add_get("/v2/team/tools/manifests/{ref}", self._send_manifest)
        app.router.add_get("/v2/team/tools/blobs/{digest}", self._send_blob)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        self.served.append(f"{request.method} {request.path}")
        return web.json_response({})

    async def _send_manifest(self, request: web.Request) -> web.Response:
        self.served.append(f"{request.method} {request.path}")
        await self.may_go_on.wait()
        digest = f"sha256:{hashlib.sha256(self._manifest).hexdigest()}"
        if request.match_info["ref"] not in ("1.0", digest):
            return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "unknown"}]}, status=404)
        return web.Response(
            body=self._manifest,
            headers={
                "Content-Type": f"{TYPES}distribution.manifest.v2+json",
                "Docker-Content-Digest": digest,
            },
        )

    async def _send_blob(self, request: web.Request) -> web.Response:
        self.served.append(f"{request.method} {request.path}")
        return web.Response(body=self._blobs[request.match_info["digest"]])
