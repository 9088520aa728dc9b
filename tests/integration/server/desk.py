"""How the tests talk to the server: to its state directly (`Desk`), and over HTTP (`Api`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp
from sqlalchemy import Connection, Table, select

from node_abilities import able
from polar.config import ServerConfig
from polar.server.records import cancel, groups, leases, nodes, results, tasks, uploads
from polar.server.serve import RolloutServer
from polar.server.state import State
from polar.types import (
    Certificate,
    GroupPage,
    HandBack,
    Heartbeat,
    HeartbeatReply,
    HeldSession,
    Lease,
    NodeCredentials,
    Registration,
    ResultPage,
    Score,
    Selection,
    SessionResult,
    SessionUpload,
    Stage,
    TaskRequest,
    TaskStatus,
    Trajectory,
    TrajectoryStatistics,
)
from polar.types.codec import encode

CONTROL = "control-secret"
NODE = "node-secret"
HEARTBEAT_S = 10.0
LEASE_S = 40.0


AS_IN_SCHEMA_8 = (
    "DROP TABLE queue",
    "DROP TABLE needs",
    "DROP INDEX sessions_waiting_of_task",
    "CREATE INDEX sessions_waiting ON sessions (priority DESC, number)"
    " WHERE stage = 'QUEUED' AND lease_expires IS NULL",
    "ALTER TABLE nodes DROP COLUMN abilities",
    "ALTER TABLE sessions DROP COLUMN cancel_reason",
    *(
        f"ALTER TABLE groups DROP COLUMN {name}"
        for name in ("running", "usable", "max_running", "enough", "on_enough")
    ),
    "DROP TABLE storage",
    "DROP TABLE removed",
    *(
        f"DROP INDEX {name}"
        for name in ("groups_fetched", "outcomes_at", "uploads_key", "uploads_stored", "uploads_inside")
    ),
    "DROP INDEX outcomes_failed_by",
    "ALTER TABLE polar_server DROP COLUMN identity",
    "ALTER TABLE results DROP COLUMN fetched",
    "ALTER TABLE groups DROP COLUMN unfetched",
    *(f"ALTER TABLE uploads DROP COLUMN {name}" for name in ("blob_key", "size_bytes", "at", "fetched")),
)
AS_IN_SCHEMA_7 = (
    *AS_IN_SCHEMA_8,
    *(f"DROP TABLE {name}" for name in ("tokens", "logins", "actions")),
    *(f"ALTER TABLE nodes DROP COLUMN old_key_{name}" for name in ("sha256", "expires")),
)
AS_IN_SCHEMA_6 = (
    *AS_IN_SCHEMA_7,
    *(f"DROP TABLE {name}" for name in ("outcomes", "stage_counts", "log_lines", "watched", "watched_parts")),
    *(f"DROP INDEX sessions_open_{name}" for name in ("newest", "in_stage", "of_harness")),
    "DROP INDEX groups_newest",
    "ALTER TABLE groups DROP COLUMN number",
    "ALTER TABLE tasks DROP COLUMN budgets",
    *(
        f"ALTER TABLE sessions DROP COLUMN {name}"
        for name in ("harness", "runtime", "since", "leased", "waited_s", "cancelled")
    ),
    "ALTER TABLE nodes DROP COLUMN uses",
    "ALTER TABLE nodes DROP COLUMN log_number",
)
AS_IN_SCHEMA_4 = (
    *AS_IN_SCHEMA_6,
    "ALTER TABLE nodes DROP COLUMN draining_since",
    "DROP TABLE groups",
    "DROP TABLE training_points",
    "DROP TABLE training_runs",
    "DROP INDEX sessions_open",
    "UPDATE results SET group_id = (SELECT group_id FROM tasks WHERE tasks.task_id = results.task_id)",
)


USABLE: dict[str, Any] = {
    "score": Score(reward=1.0),
    "statistics": TrajectoryStatistics(trainable_tokens=5),
    "certificate": Certificate(
        builder="b",
        calls=1,
        traces=1,
        sampled_tokens=5,
        trainable_tokens=5,
        dropped_tokens=0,
        calls_digest="c",
        traces_digest="t",
        exact=True,
    ),
}
"""Fields of a result that may be trained on."""


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def config_of(database: str, **settings: Any) -> ServerConfig:
    values = {"port": 0, "database": database, "heartbeat_s": HEARTBEAT_S, "lease_beats": LEASE_S / HEARTBEAT_S}
    return ServerConfig.model_validate({**values, **settings})


def task_of(task_id: str | None = "add", **fields: Any) -> TaskRequest:
    return TaskRequest.model_validate({"task_id": task_id, "instruction": "add 2 and 2", **fields})


def result_of(lease: Lease, **fields: Any) -> SessionResult:
    session = lease.session
    values: dict[str, Any] = {"stage": Stage.COMPLETED, "task_id": session.task_id, "index": session.index}
    ids = {"session_id": session.session_id, "attempt": session.attempt}
    return SessionResult.model_validate({**ids, **values, **fields})


def blob_of(result: SessionResult, trajectory: Trajectory | None = None) -> bytes:
    return encode(SessionUpload(result=result.model_dump_json().encode(), trajectory=trajectory))


class Desk:
    """The state functions, each called as the routes call them."""

    def __init__(self, state: State, clock: Clock) -> None:
        self.state = state
        self.clock = clock

    async def submit(self, task_id: str = "add", **fields: Any) -> TaskStatus:
        return await self.state.change(tasks.submit, task_of(task_id, **fields))

    async def register(self, name: str = "one", slots: int = 4, **can: Any) -> str:
        registration = Registration(name=name, slots=slots, abilities=able(**can))
        return (await self.state.change(nodes.register, registration)).node_id

    async def lease(self, node_id: str, room: int = 1) -> list[Lease]:
        return list((await self.state.change(leases.lease, node_id, room)).leases)

    async def lease_one(self, node_id: str) -> Lease:
        [lease] = await self.lease(node_id)
        return lease

    async def beat(self, node_id: str, *held: Lease, stage: Stage = Stage.RUNNING) -> HeartbeatReply:
        sessions = [
            HeldSession(session_id=lease.session.session_id, attempt=lease.session.attempt, stage=stage)
            for lease in held
        ]
        return await self.state.change(leases.heartbeat, node_id, Heartbeat(sessions=tuple(sessions)))

    async def hand_back(self, node_id: str, lease: Lease) -> None:
        given = HandBack(session_id=lease.session.session_id, attempt=lease.session.attempt)
        await self.state.change(leases.hand_back, node_id, given)

    async def report(self, node_id: str, lease: Lease, **fields: Any) -> None:
        result = result_of(lease, **fields)
        upload = uploads.checked(blob_of(result), result.session_id, result.attempt)
        await results.take(self.state, node_id, upload)

    async def expire(self) -> int:
        return await self.state.change(leases.expire)

    async def cancel_task(self, task_id: str) -> int:
        return await self.state.change(cancel.cancel, "task", task_id)

    async def results(self, after: int = 0, limit: int = 1000, **only: str) -> ResultPage:
        rows = await self.state.read(results.rows_after, after, limit, results.ResultFilter(**only))
        return results.page_of(results.ResultRows(rows, all_done=False), after)

    async def selected(self, **wanted: Any) -> ResultPage:
        selection = Selection.model_validate(wanted)
        return results.page_of(await self.state.read(results.selected, selection), selection.after)

    async def groups(self, **wanted: Any) -> GroupPage:
        """Those that are done."""
        selection = Selection.model_validate(wanted)
        chosen = None if selection.everything else await self.state.read(groups.selected, selection)
        rows = await self.state.read(groups.done_after, selection.after, selection.limit, chosen)
        return groups.page_of(rows, selection.after)

    async def row(self, session_id: str) -> dict[str, Any]:
        rows = await self.rows("sessions")
        return next(row for row in rows if row["session_id"] == session_id)

    async def rows(self, name: str) -> list[dict[str, Any]]:
        from polar.server.records.tables import METADATA

        def read(connection: Connection, table: Table) -> list[dict[str, Any]]:
            return [dict(row) for row in connection.execute(select(table)).mappings()]

        return await self.state.read(read, METADATA.tables[name])


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    """Parsed where it is JSON, else bytes."""
    headers: dict[str, str]

    @property
    def detail(self) -> str:
        detail = self.body["detail"]
        assert isinstance(detail, str) and detail
        return detail


class Api:
    """A client of a server that runs; `control` and `node` spell the token."""

    def __init__(self, server: RolloutServer) -> None:
        self.server = server
        self.http = aiohttp.ClientSession()

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.http.close()

    async def ask(self, method: str, path: str, token: str | None = CONTROL, **options: Any) -> Answer:
        headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **options.pop("headers", {})}
        async with self.http.request(method, self.server.base_url + path, headers=headers, **options) as answer:
            is_json = answer.content_type == "application/json"
            body = await answer.json() if is_json else await answer.read()
            return Answer(answer.status, body, dict(answer.headers))

    async def get(self, path: str) -> Any:
        """The body of an answer that must be a success."""
        answer = await self.ask("GET", path)
        assert answer.status == 200, answer
        return answer.body

    async def submit(self, task_id: str | None = "add", **fields: Any) -> Any:
        body = task_of(task_id, **fields).model_dump(mode="json")
        answer = await self.ask("POST", "/v1/tasks", json=body)
        assert answer.status == 201, answer
        return answer.body

    async def register(self, name: str = "one", slots: int = 4, **can: Any) -> NodeClient:
        body = {"name": name, "slots": slots, "abilities": able(**can).model_dump(mode="json")}
        answer = await self.ask("POST", "/v1/nodes", NODE, json=body)
        assert answer.status == 201, answer
        return NodeClient(self, NodeCredentials.model_validate(answer.body))

    async def results(self, query: str = "") -> ResultPage:
        return ResultPage.model_validate(await self.get(f"/v1/results{query}"))


OpenServer = Callable[..., Awaitable[Api]]


@dataclass(frozen=True)
class NodeClient:
    api: Api
    credentials: NodeCredentials

    @property
    def node_id(self) -> str:
        return self.credentials.node_id

    async def ask(self, method: str, path: str, **options: Any) -> Answer:
        route = f"/v1/nodes/{self.node_id}{path}"
        return await self.api.ask(method, route, self.credentials.key, **options)

    async def lease(self, room: int = 1, wait_s: float = 0) -> list[Lease]:
        answer = await self.ask("POST", "/lease", json={"room": room, "wait_s": wait_s})
        assert answer.status == 200, answer
        return [Lease.model_validate(lease) for lease in answer.body["leases"]]

    async def lease_one(self) -> Lease:
        [lease] = await self.lease()
        return lease

    async def beat(self, *held: Lease, stage: str = "RUNNING") -> HeartbeatReply:
        sessions = [
            {"session_id": lease.session.session_id, "attempt": lease.session.attempt, "stage": stage}
            for lease in held
        ]
        answer = await self.ask("POST", "/heartbeat", json={"sessions": sessions})
        assert answer.status == 200, answer
        return HeartbeatReply.model_validate(answer.body)

    async def upload(self, lease: Lease, blob: bytes) -> Answer:
        session = lease.session
        path = f"/sessions/{session.session_id}/attempts/{session.attempt}/result"
        return await self.ask("PUT", path, data=blob)

    async def report(self, lease: Lease, trajectory: Trajectory | None = None, **fields: Any) -> Answer:
        return await self.upload(lease, blob_of(result_of(lease, **fields), trajectory))
