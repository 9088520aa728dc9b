"""A rollout server of the real kind in a thread of its own, and a node that speaks raw HTTP to it.

Nothing of our node's code is used: what the client reads was written by somebody who only knows the contract.
"""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import orjson

from node_abilities import able
from polar.audit.certificate import certify
from polar.builders.labels import labelled
from polar.builders.prefix_merging import PrefixMerging
from polar.config import ServerConfig
from polar.server.app import Pages
from polar.server.serve import RolloutServer
from polar.store.seal import sealed
from polar.tokens.sequences import digest_of
from polar.types import (
    Call,
    CallTimes,
    Lease,
    LeaseReply,
    Message,
    Score,
    SessionResult,
    SessionUpload,
    Stage,
    Tool,
    Trajectory,
    TrajectoryStatistics,
    logprobs,
    token_ids,
)
from polar.types.codec import encode
from ports import port_to_come_back_to

CONTROL, NODE = "control-secret", "node-secret"
STAGE_S = {"QUEUED": 0.25, "INIT": 0.75, "READY": 0.5, "RUNNING": 2.5, "POSTRUN": 0.5}

T = TypeVar("T")


class Service:
    """The real server, away from the thread that is synchronous. Stopped and started it keeps its address."""

    def __init__(self, folder: Path, pages: Pages | None = None, heartbeat_s: float = 60.0) -> None:
        self._pages = pages
        self._heartbeat_s = heartbeat_s
        self._database = f"sqlite:///{folder / 'server.db'}"
        self._port = port_to_come_back_to()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server: RolloutServer | None = None
        self.url = ""

    def start(self) -> Service:
        config = ServerConfig(port=self._port, database=self._database, heartbeat_s=self._heartbeat_s)
        self._server = RolloutServer(config, control_token=CONTROL, node_token=NODE, pages=self._pages)
        self._do(self._server.start())
        self.url = self._server.base_url
        return self

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            self._do(server.stop())

    def close(self) -> None:
        self.stop()
        self._do(self._let_go())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _let_go(self) -> None:
        """Closes connections that were accepted after the server had closed its own. In turns of the event loop,
        more than accepting takes: on a busy machine a hundredth of a second may be one turn."""
        for _ in range(20):
            for transport in list(self._loop._transports.values()):  # type: ignore[attr-defined]
                transport.abort()
            await asyncio.sleep(0)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class FakeNode:
    def __init__(self, url: str, name: str = "fake:1", slots: int = 8, **abilities: Any) -> None:
        self._url = url
        body = {"name": name, "slots": slots, "abilities": able(**abilities).model_dump(mode="json")}
        given = orjson.loads(self._send("POST", "/v1/nodes", body, NODE))
        self.node_id, self._key = given["node_id"], given["key"]
        self.held: dict[str, Lease] = {}

    def lease(self, room: int = 1, wait_s: float = 0.0) -> list[str]:
        """The ids of the sessions that are now this node's."""
        body = self._send("POST", f"/v1/nodes/{self.node_id}/lease", {"room": room, "wait_s": wait_s})
        leases = LeaseReply.model_validate_json(body).leases
        self.held |= {lease.session.session_id: lease for lease in leases}
        return [lease.session.session_id for lease in leases]

    def beat(self, session_id: str, stage: Stage) -> list[str]:
        """Those that shall be cancelled."""
        held = {"session_id": session_id, "attempt": self.held[session_id].session.attempt, "stage": stage}
        reply = self._send("POST", f"/v1/nodes/{self.node_id}/heartbeat", {"sessions": [held]})
        return orjson.loads(reply)["cancel"]

    def report(self, stages: dict[str, Stage] | None = None, **fields: Any) -> None:
        """A heartbeat with all that a node may say."""
        held = [
            {"session_id": each, "attempt": self.held[each].session.attempt, "stage": stage}
            for each, stage in (stages or {}).items()
        ]
        self._send("POST", f"/v1/nodes/{self.node_id}/heartbeat", {"sessions": held, **fields})

    def watched(self, stages: dict[str, Stage]) -> list[str]:
        """The sessions that somebody looks at, by the reply to a heartbeat."""
        held = [
            {"session_id": each, "attempt": self.held[each].session.attempt, "stage": stage}
            for each, stage in stages.items()
        ]
        return orjson.loads(self._send("POST", f"/v1/nodes/{self.node_id}/heartbeat", {"sessions": held}))[
            "watched"
        ]

    def show_calls(self, session_id: str, count: int) -> None:
        """Uploads the first calls of a session that runs."""
        upload = SessionUpload(b"", None, tuple(two_calls(session_id)[:count]))
        attempt = self.held[session_id].session.attempt
        path = f"/v1/nodes/{self.node_id}/sessions/{session_id}/attempts/{attempt}/live"
        self._send("PUT", path, encode(upload))

    def fall_sick(self, part: str, why: str) -> None:
        sick = {"part": part, "why": why, "since": 1.0}
        self._send("POST", f"/v1/nodes/{self.node_id}/heartbeat", {"sick": sick})

    def finish(self, session_id: str, *, reward: float | None = 1.0, **fields: Any) -> Trajectory:
        """Uploads a session of two calls, of which the second continues the first."""
        session = self.held[session_id].session
        calls = two_calls(session_id)
        trajectory = PrefixMerging(PrefixMerging.Options()).build(session_id, calls)
        values: dict[str, Any] = {
            **session.model_dump(include={"session_id", "task_id", "index", "attempt"}),
            "stage": Stage.COMPLETED,
            "score": Score(reward=reward, reasons=("as scripted",)),
            "statistics": TrajectoryStatistics.model_validate(trajectory.statistics),
            "certificate": certify(calls, trajectory),
            "stage_s": STAGE_S,
        }
        result = SessionResult.model_validate(values | fields)
        trajectory = labelled(trajectory, self.held[session_id], result.score, result.failure)
        result = sealed(result, self.held[session_id].task)
        upload = SessionUpload(result.model_dump_json().encode(), trajectory, tuple(calls))
        path = f"/v1/nodes/{self.node_id}/sessions/{session_id}/attempts/{session.attempt}/result"
        self._send("PUT", path, encode(upload))
        return trajectory

    def serve(self, count: int) -> None:
        """Leases and finishes so many sessions, each a little better than the one before."""
        done = 0
        while done < count:
            for session_id in self.lease(wait_s=5):
                self.finish(session_id, reward=done / 4)
                done += 1

    def _send(self, method: str, path: str, body: dict[str, Any] | bytes, token: str | None = None) -> bytes:
        binary = isinstance(body, bytes)
        headers = {
            "Authorization": f"Bearer {token or self._key}",
            "Content-Type": "application/vnd.msgpack" if binary else "application/json",
        }
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request) as response:
            return response.read()


def two_calls(session_id: str) -> list[Call]:
    first = a_call(session_id, "1", prompt="<hi>", new="<hi>", said="abc", at=1001.75)
    second = a_call(session_id, "2", prompt="<hi>abc<ok>", new="<ok>", said="de", at=1003.0, parent=first.call_id)
    return [first, second]


def a_call(
    session_id: str, name: str, *, prompt: str, new: str, said: str, at: float, parent: str | None = None
) -> Call:
    """A call whose tokens are the letters of its text."""
    return Call(
        call_id=f"{session_id}.1.{name}",
        session_id=session_id,
        parent_id=parent,
        continues=parent is not None,
        new_prompt_ids=token_ids(map(ord, new)),
        completion_ids=token_ids(map(ord, said)),
        logprobs=logprobs([-0.5] * len(said)),
        prompt_digest=digest_of(token_ids(map(ord, prompt))),
        prompt_tokens=len(prompt),
        finish_reason="stop",
        new_messages=(Message(role="user", content=new),),
        response=Message(role="assistant", content=said),
        tools=None if parent else (Tool(name="bash"),),
        new_items=(b"0" * 16,),
        dialect="openai_chat",
        kind="agent",
        sampling={"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
        engine="scripted",
        logprob_mode="raw",
        times=CallTimes(at, at, at + 0.25),
        policy_version="v1",
        received=True,
    )
