"""A rollout server in memory, just enough of the contract for its client, that can lose requests and replies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import BaseModel

from polar.types import (
    FINAL_STAGES,
    Drain,
    Event,
    FinishedGroup,
    GroupPage,
    GroupStatus,
    Lease,
    NodeStatus,
    Policy,
    PolicyChange,
    ResultEntry,
    ResultPage,
    Selection,
    Session,
    SessionResult,
    SessionStatus,
    SessionUpload,
    Stage,
    TaskRequest,
    TaskStatus,
    Trajectory,
)
from polar.types.codec import encode
from ports import port_to_come_back_to

TOKEN = "secret"
TURNS_OF_AN_ACCEPT = 20
"""More turns of the event loop than asyncio takes from accepting a connection to giving it to its protocol. Turns
and not seconds: on a busy machine a hundredth of a second may be one turn."""
Fault = int | Literal["unheard", "unanswered"]
"""A status to answer with; or the connection breaks before the request is handled, or after."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeRollout:
    """Tests play the nodes: `finish` records a session's result."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        """Taken one by one by the requests that come."""
        self.fail_trajectories: int | None = None
        """A status to answer every request for a trajectory with."""
        self.removed: set[str] = set()
        """Sessions whose uploads retention has removed."""
        self.seen: list[str] = []
        """Method and path with its query, of every request."""
        self.headers: list[dict[str, str]] = []
        self.tasks: dict[str, TaskRequest] = {}
        self.sessions: dict[str, Session] = {}
        self.uploads: dict[str, SessionUpload] = {}
        self.entries: list[ResultEntry] = []
        self.events: list[Event] = []
        self.policy = Policy()
        self.draining: list[int] = []
        """What is generated, question by question; then nothing."""
        self.unheard: list[str] = []
        self.cut_events_after: int | None = None
        """Breaks every event stream off after so many events."""
        self._changed = asyncio.Condition()
        self._held = asyncio.Event()
        self._server: TestServer | None = None
        self._port = port_to_come_back_to()
        self._stopping = False

    async def start(self) -> str:
        """A second start takes the same address, as a restarted server does."""
        self._stopping = False
        app = web.Application(middlewares=[self._guard])
        app.add_routes(self._routes())
        self._server = TestServer(app, port=self._port)
        await self._server.start_server()
        return str(self._server.make_url("")).rstrip("/")

    async def stop(self) -> None:
        self._stopping = True
        async with self._changed:
            self._changed.notify_all()
        if self._server is not None:
            accepting = self._server.handler
            await self._server.close()
            for _ in range(TURNS_OF_AN_ACCEPT):
                await asyncio.sleep(0)
            await accepting.shutdown()  # closes connections that were accepted after the first shutdown

    async def finish(self, session_id: str, trajectory: Trajectory | None = None, **fields: Any) -> ResultEntry:
        session = self.sessions[session_id]
        result = SessionResult.model_validate(
            {"stage": Stage.COMPLETED, **session.model_dump(include={"session_id", "task_id", "index", "attempt"})}
            | fields
        )
        entry = ResultEntry(cursor=len(self.entries) + 1, result=result)
        async with self._changed:
            self.sessions[session_id] = session.model_copy(update={"stage": result.stage})
            self.uploads[session_id] = SessionUpload(result.model_dump_json().encode(), trajectory)
            self.entries.append(entry)
            self._changed.notify_all()
        return entry

    async def tell(self, *events: Event) -> None:
        async with self._changed:
            self.events.extend(events)
            self._changed.notify_all()

    async def held(self) -> None:
        """Until a request waits for results."""
        await self._held.wait()
        async with self._changed:
            pass

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/tasks", self._submit),
            web.get("/v1/tasks", self._list_tasks),
            web.get("/v1/tasks/{name}", self._task),
            web.get("/v1/sessions", self._list_sessions),
            web.get("/v1/sessions/{name}", self._session),
            web.get("/v1/sessions/{name}/lease", self._lease),
            web.get("/v1/sessions/{name}/upload", self._upload),
            web.get("/v1/sessions/{name}/trajectory", self._trajectory),
            web.get("/v1/results", self._results),
            web.post("/v1/results/query", self._selected_results),
            web.post("/v1/groups/query", self._selected_groups),
            web.get("/v1/groups/{name}", self._group),
            web.post("/v1/{kind}/{name}/cancel", self._cancel),
            web.get("/v1/policy", self._policy),
            web.put("/v1/policy", self._put_policy),
            web.get("/v1/policy/drain", self._drain),
            web.get("/v1/nodes", self._nodes),
            web.get("/v1/events", self._events),
        ]

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.seen.append(f"{request.method} {request.path_qs}")
        self.headers.append(dict(request.headers))
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return refusal(401, "wrong control token")
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, int):
            return refusal(fault, "out of order")
        response = web.Response() if fault == "unheard" else await handler(request)
        if fault is not None and request.transport is not None:
            request.transport.abort()
        return response

    def _status(self, task_id: str) -> TaskStatus:
        mine = [session for session in self.sessions.values() if session.task_id == task_id]
        return TaskStatus(
            task_id=task_id,
            group_id=self.tasks[task_id].group_id,
            num_samples=len(mine),
            submitted=1000.0,
            stages=dict(Counter(session.stage.value for session in mine)),
            done=all(session.stage in FINAL_STAGES for session in mine),
            session_ids=tuple(session.session_id for session in mine),
        )

    async def _submit(self, request: web.Request) -> web.Response:
        task = TaskRequest.model_validate_json(await request.read())
        task_id = task.task_id or f"made-{len(self.tasks)}"
        if task_id in self.tasks:
            return refusal(409, f"task {task_id!r} is known")
        if task.harness.name == "nobody":
            return refusal(422, "harness: unknown harness 'nobody'")
        self.tasks[task_id] = task
        for index in range(task.num_samples):
            session_id = f"{task_id}-{index}"
            self.sessions[session_id] = Session(session_id=session_id, task_id=task_id, index=index)
        return answer(self._status(task_id), 201)

    async def _list_tasks(self, request: web.Request) -> web.Response:
        bare = [self._status(task_id).model_copy(update={"session_ids": ()}) for task_id in reversed(self.tasks)]
        return answers(bare[: int(request.query.get("limit", 100))])

    async def _task(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return answer(self._status(name)) if name in self.tasks else refusal(404, f"no task {name!r}")

    async def _list_sessions(self, request: web.Request) -> web.Response:
        wanted = request.query.get("task_id")
        mine = [session for session in self.sessions.values() if wanted in (None, session.task_id)]
        stage = request.query.get("stage")
        return answers([session_status(session) for session in mine if stage in (None, session.stage.value)])

    async def _session(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.sessions:
            return refusal(404, f"no session {name!r}")
        found = [entry.result for entry in self.entries if entry.result.session_id == name]
        return answer(session_status(self.sessions[name], found[0] if found else None))

    async def _lease(self, request: web.Request) -> web.Response:
        session = self.sessions[request.match_info["name"]]
        return answer(Lease(session=session, task=self.tasks[session.task_id]))

    async def _upload(self, request: web.Request) -> web.Response:
        return blob(self.uploads.get(request.match_info["name"]))

    async def _trajectory(self, request: web.Request) -> web.Response:
        if self.fail_trajectories is not None:
            return refusal(self.fail_trajectories, "out of order")
        name = request.match_info["name"]
        if name in self.removed:
            return refusal(410, f"retention has removed the upload of {name}")
        upload = self.uploads.get(name)
        return blob(upload and upload.trajectory)

    async def _results(self, request: web.Request) -> web.Response:
        query = request.query
        after, limit = int(query.get("after", 0)), int(query.get("limit", 100))

        def found() -> list[ResultEntry]:
            mine = (entry for entry in self.entries if entry.cursor > after and self._asked_for(entry, query))
            return list(mine)[:limit]

        if float(query.get("wait_s", 0)) > 0 and not found():
            await self._hold()
        entries = found()
        return answer(ResultPage(results=tuple(entries), cursor=entries[-1].cursor if entries else after))

    async def _selected_results(self, request: web.Request) -> web.Response:
        wanted = Selection.model_validate_json(await request.read())
        if unknown := self._unknown(wanted):
            return unknown

        def found() -> list[ResultEntry]:
            mine = (entry for entry in self.entries if entry.cursor > wanted.after)
            return [entry for entry in mine if self._is_selected(entry.result.task_id, wanted)][: wanted.limit]

        if wanted.wait_s > 0 and not found() and not self._all_done(wanted):
            await self._hold()
        entries = found()
        cursor = entries[-1].cursor if entries else wanted.after
        return answer(ResultPage(results=tuple(entries), cursor=cursor, all_done=self._all_done(wanted)))

    async def _selected_groups(self, request: web.Request) -> web.Response:
        wanted = Selection.model_validate_json(await request.read())
        if unknown := self._unknown(wanted):
            return unknown

        def found() -> list[FinishedGroup]:
            names = {task.group for task_id, task in self.tasks.items() if self._is_selected(task_id, wanted)}
            whole = [self._finished(name) for name in names if not self._open_sessions(name)]
            later = sorted((group for group in whole if group.cursor > wanted.after), key=lambda g: g.cursor)
            return later[: wanted.limit]

        if wanted.wait_s > 0 and not found() and not self._all_done(wanted):
            await self._hold()
        groups = found()
        cursor = groups[-1].cursor if groups else wanted.after
        return answer(GroupPage(groups=tuple(groups), cursor=cursor, all_done=self._all_done(wanted)))

    async def _group(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        task_ids = tuple(task_id for task_id, task in self.tasks.items() if task.group == name)
        if not task_ids:
            return refusal(404, f"there is no group {name!r}")
        mine = [session for session in self.sessions.values() if session.task_id in task_ids]
        left = len(self._open_sessions(name))
        return answer(
            GroupStatus(group_id=name, task_ids=task_ids, sessions=len(mine), unfinished=left, done=not left)
        )

    async def _hold(self) -> None:
        async with self._changed:
            self._held.set()
            await self._changed.wait()

    def _unknown(self, wanted: Selection) -> web.Response | None:
        for task_id in wanted.task_ids or ():
            if task_id not in self.tasks:
                return refusal(404, f"there is no task {task_id!r}")
        for group_id in wanted.group_ids or ():
            if group_id not in {task.group for task in self.tasks.values()}:
                return refusal(404, f"there is no group {group_id!r}")
        return None

    def _is_selected(self, task_id: str, wanted: Selection) -> bool:
        named = task_id in (wanted.task_ids or ()) or self.tasks[task_id].group in (wanted.group_ids or ())
        return wanted.everything or named

    def _all_done(self, wanted: Selection) -> bool:
        """Whether each task of a selected group has ended, also if only another task of its group was named."""
        names = {task.group for task_id, task in self.tasks.items() if self._is_selected(task_id, wanted)}
        return not wanted.everything and not any(self._open_sessions(name) for name in names)

    def _open_sessions(self, group: str) -> list[Session]:
        mine = (session for session in self.sessions.values() if self.tasks[session.task_id].group == group)
        return [session for session in mine if not session.stage.final]

    def _finished(self, group: str) -> FinishedGroup:
        mine = [entry for entry in self.entries if self.tasks[entry.result.task_id].group == group]
        cursor = max((entry.cursor for entry in mine), default=0)
        return FinishedGroup(group_id=group, cursor=cursor, results=tuple(entry.result for entry in mine))

    def _asked_for(self, entry: ResultEntry, query: Any) -> bool:
        task_ids, group_id = query.getall("task_id", []), query.get("group_id")
        task_id = entry.result.task_id
        return (not task_ids or task_id in task_ids) and group_id in (None, self.tasks[task_id].group_id)

    async def _cancel(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.match_info["name"]
        mine = [
            session.session_id
            for session in self.sessions.values()
            if name
            == {
                "sessions": session.session_id,
                "tasks": session.task_id,
                "groups": self.tasks[session.task_id].group_id,
            }[kind]
            and not session.stage.final
        ]
        for session_id in mine:
            await self.finish(session_id, stage=Stage.CANCELLED)
        return web.json_response({"cancelled": len(mine)})

    async def _policy(self, _: web.Request) -> web.Response:
        return answer(self.policy)

    async def _put_policy(self, request: web.Request) -> web.Response:
        wanted = PolicyChange.model_validate_json(await request.read()).model_dump(exclude_none=True)
        updates = self.policy.updates + ("version" in wanted)
        counts = {"updates": updates, "revision": self.policy.revision + 1}
        self.policy = self.policy.model_copy(update=wanted | counts)
        return answer(self.policy)

    async def _drain(self, _: web.Request) -> web.Response:
        generating = self.draining.pop(0) if self.draining else 0
        return answer(Drain(policy=self.policy, generating=generating, unheard=tuple(self.unheard)))

    async def _nodes(self, _: web.Request) -> web.Response:
        node = NodeStatus(node_id="n1", name="host:1", slots=4, registered=1.0, last_seen=2.0, alive=True)
        return answers([node])

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """In small pieces and with comments between, as a network may deliver them."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        cursor, sent = int(request.headers.get("Last-Event-ID") or request.query["after"]), 0
        while not self._stopping and (self.cut_events_after is None or sent < self.cut_events_after):
            for event in [event for event in self.events if event.cursor > cursor][: self.cut_events_after]:
                text = (
                    f"id: {event.cursor}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n: still here\n\n"
                )
                for half in (text[:20], text[20:]):
                    await response.write(half.encode())
                    await asyncio.sleep(0)
                cursor, sent = event.cursor, sent + 1
            if self.cut_events_after is None:
                async with self._changed:
                    await self._changed.wait()
        return response


def session_status(session: Session, result: SessionResult | None = None) -> SessionStatus:
    return SessionStatus(**session.model_dump(), result=result)


def answer(value: BaseModel, status: int = 200) -> web.Response:
    return web.Response(body=value.model_dump_json(), status=status, content_type="application/json")


def answers(values: list[Any]) -> web.Response:
    return web.json_response([value.model_dump(mode="json") for value in values])


def blob(value: msgspec.Struct | None) -> web.Response:
    if value is None:
        return refusal(404, "there is nothing yet")
    return web.Response(body=encode(value), content_type="application/vnd.msgpack")


def refusal(status: int, detail: str) -> web.Response:
    return web.json_response({"detail": detail}, status=status)
