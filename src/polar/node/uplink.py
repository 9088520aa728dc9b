"""The node's HTTP client: one method for each of the server's node routes, and the body of an upload.

It keeps the node's credentials. It does not retry: `ServerSource` decides when and how often to ask.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from polar.client.transport import detail_of
from polar.errors import ConfigError, PolarError
from polar.tls import CertificateUnusable, advice, client_context
from polar.types import (
    Call,
    Failure,
    HandBack,
    Heartbeat,
    HeartbeatReply,
    LeaseReply,
    LeaseRequest,
    NodeCredentials,
    Registration,
    SessionFile,
    SessionResult,
    SessionUpload,
    Stage,
    Trajectory,
    TrajectoryStatistics,
)
from polar.types.codec import MSGPACK
from polar.types.packed import PACKED, is_compressed, pack_upload

M = TypeVar("M", bound=BaseModel)

ANSWER_S = 15.0
"""How long an answer may take, beyond the requested wait."""
UPLOAD_S = 300.0


class UplinkError(PolarError):
    """The server did not do what the node asked."""


class ServerAway(UplinkError):
    """No usable answer: try again."""


class NotRegistered(UplinkError):
    """The server does not know this node, or no longer."""


class LeaseRefused(UplinkError):
    """The session, or this attempt of it, is not leased to this node, or the server has removed it. Final."""


class Unacceptable(UplinkError):
    """The server can never accept this body: too large, or of another version."""


class OtherVersion(UplinkError):
    """The server speaks another version of the protocol."""


class Uplink:
    """Opened with `async with`."""

    def __init__(self, base_url: str, node_token: str | Callable[[], str]) -> None:
        """`node_token`: a function is asked at each registration, because a token may be rotated."""
        self.base_url = base_url.rstrip("/")
        self._node_token = node_token if callable(node_token) else lambda: node_token
        self._credentials: NodeCredentials | None = None
        self._key_since = 0.0
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Uplink:
        secure = self.base_url.startswith("https://")
        try:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=client_context() if secure else True)
            )
        except CertificateUnusable as error:
            raise ConfigError(str(error)) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            await self._http.close()

    @property
    def registered(self) -> bool:
        return self._credentials is not None

    def forget(self) -> None:
        """Drops credentials that the server no longer accepts."""
        self._credentials = None

    async def register(self, registration: Registration) -> NodeCredentials:
        try:
            answer = await self._ask("POST", "/v1/nodes", self._node_token(), _json(registration))
        except NotRegistered as error:
            raise ConfigError(
                f"the server at {self.base_url} refuses this node's token: copy its node-token to this machine or "
                "set POLAR_NODE_TOKEN"
            ) from error
        except OtherVersion as error:
            raise ConfigError(f"the server at {self.base_url} refuses this node: {error}") from error
        return self._keep(_read(NodeCredentials, answer))

    async def renew_key(self) -> None:
        """A new key for the same node. While the answer is on its way, and if it is lost, the old one is valid."""
        asked = self._credentials
        renewed = _read(NodeCredentials, await self._ask_as_node("POST", "key", None))
        if self._credentials is asked:
            self._keep(renewed)

    @property
    def key_age_s(self) -> float:
        return time.monotonic() - self._key_since

    def _keep(self, credentials: NodeCredentials) -> NodeCredentials:
        self._credentials, self._key_since = credentials, time.monotonic()
        return credentials

    async def lease(self, request: LeaseRequest) -> LeaseReply:
        limit_s = request.wait_s + ANSWER_S
        return _read(LeaseReply, await self._ask_as_node("POST", "lease", _json(request), limit_s))

    async def heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        return _read(HeartbeatReply, await self._ask_as_node("POST", "heartbeat", _json(beat)))

    async def hand_back(self, session: HandBack) -> None:
        await self._ask_as_node("POST", "handback", _json(session))

    async def upload(self, session_id: str, attempt: int, blob: bytes) -> None:
        path = f"sessions/{session_id}/attempts/{attempt}/result"
        await self._ask_as_node("PUT", path, blob, UPLOAD_S)

    async def upload_live(self, session_id: str, attempt: int, blob: bytes) -> None:
        await self._ask_as_node("PUT", f"sessions/{session_id}/attempts/{attempt}/live", blob)

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
        assert self._http is not None, "open the uplink with `async with`"
        binary = PACKED if is_compressed(body or b"") else MSGPACK
        kind = binary if method == "PUT" else "application/json"
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
            why = advice(error, self.base_url) or str(error) or type(error).__name__
            raise ServerAway(f"{self.base_url}: {why}") from error


def _accept(status: int, body: bytes) -> bytes:
    if status < 300:
        return body
    why = f"{status}: {detail_of(body)[:500]}"
    if status == 401:
        raise NotRegistered(why)
    if status in (409, 410):
        raise LeaseRefused(why)
    if status == 426:
        raise OtherVersion(detail_of(body)[:500])
    if status in (400, 413, 422):
        raise Unacceptable(why)
    raise ServerAway(why)


def _read(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise ServerAway(f"the answer is not a {model.__name__}: is it a Polar server of this version?") from error


def _json(body: BaseModel) -> bytes:
    return body.model_dump_json().encode()


def upload_of(
    result: SessionResult,
    trajectory: Trajectory | None,
    calls: Sequence[Call],
    files: tuple[SessionFile, ...] = (),
) -> bytes:
    # `json` keeps NaN and infinity in metrics; pydantic's own writer turns them into null.
    body = json.dumps(result.model_dump(mode="json")).encode()
    return pack_upload(SessionUpload(result=body, trajectory=trajectory, calls=tuple(calls), files=files))


def bare_upload(result: SessionResult, why: str) -> bytes:
    """Replaces an upload the server cannot accept: the session still gets its result, which is FAILED."""
    changes = {
        "stage": Stage.FAILED,
        "score": None,
        "failure": Failure(where="upload", type="Unacceptable", message=why[:4000]),
        "statistics": TrajectoryStatistics(),
        "traces": None,
        "certificate": None,
        "seal": "",
    }
    return upload_of(result.model_copy(update=changes), None, ())
