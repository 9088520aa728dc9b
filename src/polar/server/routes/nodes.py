"""Routes of gateway nodes: register, lease, heartbeat, hand back, report, leave."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request

from polar.server.access.auth import Access, bearer, guarded_router
from polar.server.overview import live
from polar.server.records import leases, nodes, results, uploads
from polar.server.routes.idle_nodes import IdleNodes
from polar.server.routes.parameters import CONFLICT, OTHER_VERSION, UNKNOWN, PathId
from polar.server.scheduling.versions import same_protocol
from polar.server.state import Change, State
from polar.types import (
    HandBack,
    Heartbeat,
    HeartbeatReply,
    LeaseReply,
    LeaseRequest,
    NodeCredentials,
    NodeDrain,
    NodeStatus,
    Registration,
)
from polar.types.codec import MSGPACK
from polar.types.packed import PACKED

RESULT_PATH = "/v1/nodes/{node_id}/sessions/{session_id}/attempts/{attempt}/result"
LIVE_PATH = "/v1/nodes/{node_id}/sessions/{session_id}/attempts/{attempt}/live"
Attempt = Annotated[int, Path(ge=1)]
_BLOB: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in (PACKED, MSGPACK)},
    }
}


class NodeRoutes:
    def __init__(self, state: State) -> None:
        self._state = state
        self._idle = IdleNodes(state)

    def routers(self, access: Access) -> list[APIRouter]:
        watching = guarded_router(access.control, "nodes", record=access)
        watching.get("/v1/nodes", summary="List the nodes")(self.listing)
        drain: dict[str, Any] = {"status_code": 204, "responses": UNKNOWN}
        watching.post("/v1/nodes/{node_id}/drain", summary="Drain a node, or take that back", **drain)(self.drain)
        joining = guarded_router(access.registration, "nodes", record=access)
        other: dict[str, Any] = {"responses": OTHER_VERSION}
        one_protocol = [Depends(same_protocol)]
        register = joining.post(
            "/v1/nodes", summary="Register a node", status_code=201, dependencies=one_protocol, **other
        )
        register(self.register)
        own = guarded_router(access.node, "nodes")
        own.post("/v1/nodes/{node_id}/lease", summary="Lease sessions", **other)(self.lease)
        own.post("/v1/nodes/{node_id}/heartbeat", summary="Renew leases")(self.heartbeat)
        refusing: dict[str, Any] = {"status_code": 204, "responses": {**CONFLICT, **UNKNOWN}}
        own.post("/v1/nodes/{node_id}/handback", summary="Hand a session back", **refusing)(self.hand_back)
        own.put(RESULT_PATH, summary="Report a result", openapi_extra=_BLOB, **refusing)(self.report)
        own.put(LIVE_PATH, summary="Show a watched session", openapi_extra=_BLOB, **refusing)(self.report_live)
        own.post("/v1/nodes/{node_id}/key", summary="Renew the node's key")(self.renew_key)
        own.delete("/v1/nodes/{node_id}", summary="Leave", status_code=204)(self.leave)
        return [watching, joining, own]

    async def listing(self) -> list[NodeStatus]:
        """What each runs and generates, when it was last heard of, and why one is sick."""
        return await self._state.read(nodes.listing, self._state.alive_since)

    async def drain(self, node_id: PathId, wanted: NodeDrain) -> None:
        """It gets no more sessions; those that it has end as usual."""
        await self._state.change(nodes.set_draining, node_id, wanted)

    async def register(self, registration: Registration) -> NodeCredentials:
        """With the node token. The answer holds the key for the node's other requests. A node with another version
        of the protocol is refused."""
        return await self._state.change(nodes.register, registration)

    async def renew_key(self, request: Request, node_id: PathId) -> NodeCredentials:
        """Sessions and leases stay. The key that was used for it is valid for ten minutes more."""
        return await self._state.change(nodes.renew_key, node_id, nodes.sha256(bearer(request)))

    async def lease(self, request: Request, node_id: PathId, wanted: LeaseRequest) -> LeaseReply:
        """At most as many as the node has room for, of those that it can run. Waits up to `wait_s` for the first
        one."""
        return await self._idle.lease(request, node_id, wanted)

    async def heartbeat(self, node_id: PathId, beat: Heartbeat) -> HeartbeatReply:
        """The node reports its stages and its health; the answer says what to cancel, and holds the policy."""
        return await self._state.change(leases.heartbeat, node_id, beat)

    async def hand_back(self, node_id: PathId, given: HandBack) -> None:
        """The session runs again with the next attempt, at this node or another."""
        await self._state.change(leases.hand_back, node_id, given)

    async def report(self, request: Request, node_id: PathId, session_id: PathId, attempt: Attempt) -> None:
        """Result, trajectory and calls as one binary blob. The result of an older attempt is refused; a second
        upload of a recorded one changes nothing."""
        body, limit = await request.body(), self._state.config.max_upload_bytes
        upload = await asyncio.to_thread(uploads.checked, body, session_id, attempt, limit)
        await results.take(self._state, node_id, upload)

    async def report_live(self, request: Request, node_id: PathId, session_id: PathId, attempt: Attempt) -> None:
        """Calls and log tails of a session that runs and that a heartbeat reply named as watched."""
        blob = await asyncio.to_thread(live.checked, await request.body(), session_id)
        await live.take(self._state, node_id, session_id, attempt, blob)

    async def leave(self, node_id: PathId) -> None:
        """Ends the node's registration; sessions that it still had run again elsewhere."""

        def leaving(change: Change) -> None:
            leases.leave(change, node_id)
            nodes.remove(change, node_id)

        await self._state.change(leaving)
