"""The node's line to the rollout server: a method for each route, and what the server's answers mean.

It holds the node's credentials and nothing else; when and how often something is asked is the source's business.
"""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

import aiohttp
import orjson
from pydantic import BaseModel, ValidationError

from polar.errors import ConfigError, PolarError
from polar.types import (
    HandBack,
    Heartbeat,
    HeartbeatReply,
    LeaseReply,
    LeaseRequest,
    NodeCredentials,
    Registration,
)

M = TypeVar("M", bound=BaseModel)

ANSWER_S = 15.0
"""How long an answer may take beyond the wait that was asked for."""
UPLOAD_S = 300.0
MSGPACK = "application/vnd.msgpack"


class ServerAway(PolarError):
    """No answer, or one that says nothing about the request: try again."""


class NotRegistered(PolarError):
    """The server does not know this node, or not any more."""


class Refused(PolarError):
    """The session is not this node's, or not in this attempt: for good."""


class Unacceptable(PolarError):
    """What was sent can never be taken: too large, or not of the server's version."""


class Uplink:
    """Opened with `async with`."""

    def __init__(self, base_url: str, node_token: str) -> None:
        self.base_url = base_url.rstrip("/")
        self._node_token = node_token
        self._credentials: NodeCredentials | None = None
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Uplink:
        self._http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._http is not None:
            await self._http.close()

    @property
    def registered(self) -> bool:
        return self._credentials is not None

    def forget(self) -> None:
        """The credentials are worth nothing any more."""
        self._credentials = None

    async def register(self, registration: Registration) -> NodeCredentials:
        body = registration.model_dump_json().encode()
        try:
            answer = await self._ask("POST", "/v1/nodes", self._node_token, body)
        except NotRegistered as error:
            raise ConfigError(
                f"the server at {self.base_url} refuses this node's token: copy its node-token to this machine or "
                "set POLAR_NODE_TOKEN"
            ) from error
        self._credentials = _read(NodeCredentials, answer)
        return self._credentials

    async def lease(self, request: LeaseRequest) -> LeaseReply:
        body = request.model_dump_json().encode()
        return _read(LeaseReply, await self._ask_as_node("POST", "lease", body, request.wait_s + ANSWER_S))

    async def heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        return _read(HeartbeatReply, await self._ask_as_node("POST", "heartbeat", beat.model_dump_json().encode()))

    async def hand_back(self, session: HandBack) -> None:
        await self._ask_as_node("POST", "handback", session.model_dump_json().encode())

    async def upload(self, session_id: str, attempt: int, blob: bytes) -> None:
        path = f"sessions/{session_id}/attempts/{attempt}/result"
        await self._ask_as_node("PUT", path, blob, UPLOAD_S)

    async def leave(self) -> None:
        await self._ask_as_node("DELETE", "", None)
        self._credentials = None

    async def _ask_as_node(self, method: str, path: str, body: bytes | None, limit_s: float = ANSWER_S) -> bytes:
        credentials = self._credentials
        if credentials is None:
            raise NotRegistered("the node is not registered")
        route = f"/v1/nodes/{credentials.node_id}/{path}".rstrip("/")
        return await self._ask(method, route, credentials.key, body, limit_s)

    async def _ask(
        self, method: str, route: str, key: str, body: bytes | None, limit_s: float = ANSWER_S
    ) -> bytes:
        assert self._http is not None, "the uplink is opened with `async with`"
        kind = MSGPACK if method == "PUT" else "application/json"
        try:
            async with self._http.request(
                method,
                self.base_url + route,
                data=body,
                headers={"authorization": f"Bearer {key}", "content-type": kind},
                timeout=aiohttp.ClientTimeout(total=limit_s),
                allow_redirects=False,  # the key is for this server alone
            ) as answer:
                return _accept(answer.status, await answer.read())
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ServerAway(f"{self.base_url}: {str(error) or type(error).__name__}") from error


def _accept(status: int, body: bytes) -> bytes:
    if status < 300:
        return body
    why = f"{status}: {_detail(body)}"
    if status == 401:
        raise NotRegistered(why)
    if status == 409:
        raise Refused(why)
    if status in (400, 413, 422):
        raise Unacceptable(why)
    raise ServerAway(why)


def _detail(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["detail"])[:500]
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _read(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise ServerAway(
            f"an answer that is no {model.__name__}: is it a Polar server of this version?"
        ) from error
