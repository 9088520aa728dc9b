"""A session read from a rollout server, in the form of one of a local run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from polar import config
from polar.client import PolarClient, ServerError
from polar.dashboard.stage_times import Stages, stages_of
from polar.types import Call, Lease, SessionFile, SessionResult, SessionUpload, Spec, Stage, Trace

EVENTS_S = 2.0
"""How long to search the server's events, which begin with its first, for a session that has not ended."""


@dataclass(frozen=True)
class ServerSession:
    """Has what `polar show` needs of a `StoredSession`."""

    server: str
    lease: Lease
    result: SessionResult | None
    stages: Stages
    calls: Sequence[Call]
    traces: tuple[Trace, ...]
    files: tuple[SessionFile, ...] = ()
    """Logs and kept files, as far as its node uploaded them."""
    node: str = ""
    """Id and name of the node that ran the session, or runs it; empty: none has."""
    upload: SessionUpload | None = None
    """As the server has it; None: its node has sent nothing yet."""
    waits: str = ""
    """Why no node has it yet."""
    folder = None
    """The node that ran the session has its files."""

    @property
    def session_id(self) -> str:
        return self.lease.session.session_id

    @property
    def origin(self) -> dict[str, str]:
        return {"server": self.server} | ({"node": self.node} if self.node else {})

    @property
    def renderer(self) -> Spec | None:
        """That of the config here, which should name the model of the server's nodes."""
        return config.load().model.spelling


async def load_from_server(client: PolarClient, session_id: str) -> ServerSession:
    lease = await client.lease(session_id)
    status = await client.session(session_id)
    result = status.result
    upload = await _upload(client, session_id)
    calls = upload.calls if upload else ()
    submitted = (await client.task(lease.session.task_id)).submitted
    stages = (
        stages_of(result, submitted, calls)
        if result is not None and result.stage_s
        else await _stages_from_events(client, lease, submitted)
    )
    traces = upload.trajectory.traces if upload and upload.trajectory else ()
    node = await _node_of(client, lease.session.node_id)
    files = upload.files if upload else ()
    return ServerSession(client.url, lease, result, stages, calls, traces, files, node, upload, status.waits)


async def _node_of(client: PolarClient, node_id: str | None) -> str:
    """The server knows the name while the node is registered."""
    if node_id is None:
        return ""
    names = {node.node_id: node.name for node in await client.nodes()}
    return f"{node_id} ({names[node_id]})" if node_id in names else node_id


async def results_of(client: PolarClient, task_id: str) -> dict[str, SessionResult]:
    """The results so far, by session."""
    found: dict[str, SessionResult] = {}
    page = await client.result_page(task_id=task_id)
    while page.results:
        found |= {entry.result.session_id: entry.result for entry in page.results}
        page = await client.result_page(task_id=task_id, after=page.cursor)
    return found


async def _upload(client: PolarClient, session_id: str) -> SessionUpload | None:
    try:
        return await client.upload(session_id)
    except ServerError as error:
        if error.status != 404:
            raise
        return None


async def _stages_from_events(client: PolarClient, lease: Lease, submitted: float) -> Stages:
    """At the times when the server heard of them, with a node's next heartbeat."""
    session = lease.session
    stages: Stages = [(Stage.QUEUED, submitted)]
    if session.stage is Stage.QUEUED and session.attempt == 1:
        return stages
    with suppress(TimeoutError):
        async with asyncio.timeout(EVENTS_S), aclosing(client.events()) as events:
            async for event in events:
                if event.session_id != session.session_id or event.kind not in ("stage", "result"):
                    continue
                stage = Stage(event.data["stage"])
                if stage is not stages[-1][0]:  # a lease is an event too, and changes no stage
                    stages.append((stage, event.at))
                if (stage, event.data["attempt"]) == (session.stage, session.attempt):
                    break
    return stages
