"""A rollout server in memory with what `polar top` asks for, and values to show."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import BaseModel

from polar.types import Event, NodeStatus, Policy, PolicyChange, Stage
from polar.types.service.nodes import Sickness
from polar.types.service.overview import (
    EngineRate,
    FailureCount,
    GroupContrast,
    HarnessOutcomes,
    LogLine,
    LogPage,
    Overview,
    SessionListPage,
    SessionRowView,
    StuckSession,
)
from ports import port_to_come_back_to

TOKEN = "secret"
AT = 1_794_719_553.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def a_node(number: int, **changes: Any) -> NodeStatus:
    values: dict[str, Any] = {
        "node_id": f"node-{number}",
        "name": f"gpu{number}:4711",
        "slots": 4,
        "registered": AT - 9000,
        "last_seen": AT - 2,
        "alive": True,
        "heard": True,
        "sessions": ("sort-0", "sort-1"),
    }
    return NodeStatus.model_validate(values | changes)


def a_session(session_id: str, stage: Stage = Stage.RUNNING, **changes: Any) -> SessionRowView:
    values: dict[str, Any] = {
        "number": 1,
        "session_id": session_id,
        "task_id": session_id.rpartition("-")[0],
        "group_id": "sums",
        "index": 0,
        "attempt": 1,
        "stage": stage,
        "since": AT - 75,
        "node_id": None if stage is Stage.QUEUED else "node-1",
        "harness": "codex",
        "runtime": "bubblewrap",
    }
    return SessionRowView.model_validate(values | changes)


def a_log(count: int = 3) -> tuple[LogLine, ...]:
    words = ("registered", "lost its lease", "the engine does not answer")
    levels = ("info", "warning", "error")
    return tuple(
        LogLine(at=AT - count + i, level=levels[i % 3], source="gpu1:4711", message=f"{i} {words[i % 3]}")
        for i in range(count)
    )


def an_overview(**changes: Any) -> Overview:
    sick = Sickness(part="engine", why="connection refused at 127.0.0.1:8000 since the last update", since=AT - 90)
    values: dict[str, Any] = {
        "at": AT,
        "version": "0.1.0",
        "cursor": 7,
        "policy": Policy(version="step-12", updates=12, revision=14),
        "stages": {"QUEUED": 1, "RUNNING": 2, "COMPLETED": 12_340, "FAILED": 3, "TIMED_OUT": 1},
        "oldest_queued_s": 83.0,
        "slots": 4,
        "busy": 2,
        "nodes": (a_node(1), a_node(2, sick=sick, sessions=()), a_node(3, draining=True)),
        "rate": EngineRate(
            over_s=30,
            calls_per_s=3.25,
            prompt_tokens_per_s=20_100,
            sampled_tokens_per_s=1234.5,
            first_token_s=0.31,
        ),
        "window": 200,
        "ended_per_minute": 12.5,
        "harnesses": (
            HarnessOutcomes(
                harness="codex",
                sessions=120,
                trainable=110,
                mean_reward=0.41,
                rows_per_session=1.02,
                merge_rate=0.99,
            ),
            HarnessOutcomes(harness="pi", sessions=80, trainable=80, mean_reward=0.25, rows_per_session=2.5),
        ),
        "failures": (
            FailureCount(where="harness", type="ExitCode", agent=True, count=9, session_id="sort-7"),
            FailureCount(where="engine", type="EngineFailure", agent=False, count=2, session_id="sort-9"),
        ),
        "untrainable": {"infrastructure": 2, "no_reward": 8},
        "stale": 1,
        "contrast": GroupContrast(groups=40, without_contrast=12, mean_spread=0.3),
        "stuck": (
            StuckSession(
                session_id="sort-1",
                task_id="sort",
                stage=Stage.RUNNING,
                since=AT - 900,
                why="RUNNING for 900 s; budgets.run_s is 300",
            ),
        ),
    }
    return Overview.model_validate(values | changes)


class FakeService:
    """Tests change its values and then `tell` that something happened."""

    def __init__(self) -> None:
        self.overview = an_overview()
        self.sessions = [a_session("sort-0"), a_session("sort-1"), a_session("sort-2", Stage.QUEUED)]
        self.log = a_log()
        self.did: list[str] = []
        """What clients asked it to do."""
        self.looks = 0
        """How often a client asked for the overview."""
        self.failing: int | None = None
        """A status to answer everything with."""
        self._cursor = 7
        self._changed = asyncio.Condition()
        self._stopping = False
        self._port = port_to_come_back_to()
        self._server: TestServer | None = None

    async def start(self) -> str:
        """A second start takes the same address, as a restarted server does."""
        self._stopping = False
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/v1/overview", self._overview),
                web.get("/v1/overview/sessions", self._sessions),
                web.get("/v1/overview/log", self._log),
                web.get("/v1/events", self._events),
                web.get("/v1/policy", self._policy),
                web.put("/v1/policy", self._put_policy),
                web.post("/v1/{kind}/{name}/{verb}", self._act),
            ]
        )
        self._server = TestServer(app, port=self._port)
        await self._server.start_server()
        return str(self._server.make_url("")).rstrip("/")

    async def stop(self) -> None:
        self._stopping = True
        await self._wake()
        if self._server is not None:
            await self._server.close()
            self._server = None

    async def tell(self) -> None:
        self._cursor += 1
        self.overview = self.overview.model_copy(update={"cursor": self._cursor})
        await self._wake()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"detail": "wrong control token"}, status=401)
        if self.failing is not None:
            return web.json_response({"detail": "out of order"}, status=self.failing)
        return await handler(request)

    async def _overview(self, _: web.Request) -> web.Response:
        self.looks += 1
        return _answer(self.overview)

    async def _sessions(self, request: web.Request) -> web.Response:
        found = [session for session in self.sessions if session.stage == request.query["stage"]]
        return _answer(SessionListPage(sessions=tuple(found)))

    async def _log(self, _: web.Request) -> web.Response:
        return _answer(LogPage(lines=self.log, cursor=len(self.log)))

    async def _policy(self, _: web.Request) -> web.Response:
        return _answer(self.overview.policy)

    async def _put_policy(self, request: web.Request) -> web.Response:
        wanted = PolicyChange.model_validate_json(await request.read()).model_dump(exclude_none=True)
        policy = self.overview.policy.model_copy(update=wanted)
        self.overview = self.overview.model_copy(update={"policy": policy})
        self.did.append("pause" if policy.paused else "resume")
        return _answer(policy)

    async def _act(self, request: web.Request) -> web.Response:
        body = await request.read()
        undone = b"false" in body
        self.did.append(" ".join(request.match_info.values()) + (" undone" if undone else ""))
        return web.json_response({"cancelled": 1})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        cursor = int(request.query["after"])
        while not self._stopping:
            for number in range(cursor + 1, self._cursor + 1):
                event = Event(cursor=number, at=AT, kind="policy")
                await response.write(f"id: {number}\ndata: {event.model_dump_json()}\n\n".encode())
            cursor = max(cursor, self._cursor)
            async with self._changed:
                await self._changed.wait()
        return response


def _answer(value: BaseModel) -> web.Response:
    return web.Response(body=value.model_dump_json(), content_type="application/json")
