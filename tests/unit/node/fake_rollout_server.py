"""A rollout server that does what the test tells it, and keeps what a node said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from polar.types import (
    HandBack,
    Heartbeat,
    HeartbeatReply,
    Lease,
    LeaseReply,
    LeaseRequest,
    NodeCredentials,
    Policy,
    Registration,
    Session,
    SessionUpload,
    TaskRequest,
)
from polar.types.packed import unpack_upload

TOKEN = "the-node-token"


def a_lease(session_id: str, attempt: int = 1) -> Lease:
    task = TaskRequest(task_id="t", instruction="x")
    return Lease(session=Session(session_id=session_id, task_id="t", index=0, attempt=attempt), task=task)


class FakeRolloutServer:
    def __init__(self) -> None:
        self.policy = Policy()
        self.queue: list[Lease] = []
        self.cancel: list[str] = []
        self.lost: list[str] = []
        self.cancel_reasons: dict[str, str] = {}
        self.refuse_registration = ""
        """As a server of another version does."""
        self.down = False
        self.refuse_uploads: Callable[[bytes], int] = lambda _: 204
        self.registrations: list[Registration] = []
        self.requests: list[LeaseRequest] = []
        self.beats: list[Heartbeat] = []
        self.handbacks: list[HandBack] = []
        self.uploads: list[tuple[str, int, SessionUpload]] = []
        self.attempted_uploads = 0
        self.left = 0
        self.forgotten = False
        self._runner: web.AppRunner | None = None
        self.base_url = ""

    async def start(self) -> None:
        app = web.Application(client_max_size=2**30, middlewares=[self._guard])
        node = "/v1/nodes/{node_id}"
        app.router.add_post("/v1/nodes", self._register)
        app.router.add_post(node + "/lease", self._lease)
        app.router.add_post(node + "/heartbeat", self._heartbeat)
        app.router.add_post(node + "/handback", self._hand_back)
        app.router.add_put(node + "/sessions/{session_id}/attempts/{attempt}/result", self._upload)
        app.router.add_delete(node, self._leave)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.down:
            return web.Response(status=503)
        registering = request.path == "/v1/nodes"
        key = TOKEN if registering else f"key-{len(self.registrations)}"
        known = registering or not self.forgotten
        if not known or request.headers.get("authorization") != f"Bearer {key}":
            return web.json_response({"detail": "who are you?"}, status=401)
        return await handler(request)

    async def _register(self, request: web.Request) -> web.Response:
        if self.refuse_registration:
            return web.json_response({"detail": self.refuse_registration}, status=426)
        self.registrations.append(Registration.model_validate_json(await request.read()))
        self.forgotten = False
        number = len(self.registrations)
        reply = NodeCredentials(node_id=f"node-{number}", key=f"key-{number}", heartbeat_s=0.02)
        return web.Response(text=reply.model_dump_json(), status=201)

    async def _lease(self, request: web.Request) -> web.Response:
        asked = LeaseRequest.model_validate_json(await request.read())
        self.requests.append(asked)
        for _ in range(int(asked.wait_s / 0.01)):
            if self.queue or self.down or self.forgotten:
                break
            await asyncio.sleep(0.01)
        leases, self.queue = self.queue[: asked.room], self.queue[asked.room :]
        return web.Response(text=LeaseReply(leases=tuple(leases), policy=self.policy).model_dump_json())

    async def _heartbeat(self, request: web.Request) -> web.Response:
        self.beats.append(Heartbeat.model_validate_json(await request.read()))
        reply = HeartbeatReply(
            cancel=tuple(self.cancel),
            cancel_reasons=self.cancel_reasons,
            lost=tuple(self.lost),
            policy=self.policy,
        )
        return web.Response(text=reply.model_dump_json())

    async def _hand_back(self, request: web.Request) -> web.Response:
        self.handbacks.append(HandBack.model_validate_json(await request.read()))
        return web.Response(status=204)

    async def _upload(self, request: web.Request) -> web.Response:
        self.attempted_uploads += 1
        body = await request.read()
        status = self.refuse_uploads(body)
        if status != 204:
            return web.json_response({"detail": "no"}, status=status)
        key = request.match_info["session_id"], int(request.match_info["attempt"])
        self.uploads.append((*key, unpack_upload(body)))
        return web.Response(status=204)

    async def _leave(self, _: web.Request) -> web.Response:
        self.left += 1
        return web.Response(status=204)
