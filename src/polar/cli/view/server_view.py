"""`polar view --server`: a session of a rollout server, with the others of its task, as a file or served here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from polar import __version__, config
from polar.cli.output import console
from polar.cli.service.remote import connected
from polar.cli.service.remote_sessions import load_from_server
from polar.cli.view.view import Comparison, serve, write_document
from polar.client import PolarClient, ServerError
from polar.dashboard.comparison import comparison_of
from polar.dashboard.document import comparison_document, session_document
from polar.dashboard.material import PageMaterial, material_of_upload, rebuilt
from polar.dashboard.page import ListedSession, RunPage
from polar.dashboard.session_page import page_of
from polar.dashboard.site import ViewerSite
from polar.dashboard.source import UnknownSession
from polar.dashboard.spelling import OF_A_SERVER, spelling_or_numbers
from polar.errors import PolarError
from polar.types import Call, SessionFilter, SessionRowView


class TaskSource:
    """The sessions of one task at a server."""

    def __init__(self, client: PolarClient, task_id: str) -> None:
        self._client = client
        self._task_id = task_id

    async def listed(self) -> RunPage:
        task = await self._client.task(self._task_id)
        page = await self._client.session_list(SessionFilter(task_id=self._task_id))
        rows = [_listed(row) for row in reversed(page.sessions)]
        title = f"task {self._task_id} at {self._client.url}"
        return RunPage("", __version__, task.submitted, rows, title)

    async def session_ids(self) -> Sequence[str]:
        return (await self._client.task(self._task_id)).session_ids

    async def material(self, session_id: str) -> PageMaterial:
        return await material_at_server(self._client, session_id)

    async def calls(self, session_id: str) -> Sequence[Call]:
        return (await self.material(session_id)).calls


async def material_at_server(client: PolarClient, session_id: str) -> PageMaterial:
    if not session_id:
        raise UnknownSession("name a session")
    try:
        session = await load_from_server(client, session_id)
    except ServerError as error:
        if error.status == 404:
            raise UnknownSession(f"{client.url} has no session {session_id!r}; give its whole id") from error
        raise
    return await asyncio.to_thread(
        material_of_upload, session.lease, session.upload, session.stages, session.result
    )


def view_at_server(server: str, session: str | None, html: Path | None, comparison: Comparison, port: int) -> None:
    if session is None:
        raise PolarError(
            f"name a session of {server}, as in `polar view SESSION --server {server}`; in a browser {server} "
            "lists them all. A run of this machine needs --run"
        )
    asyncio.run(_view(server, session, html, comparison, port))


async def _view(server: str, session: str, html: Path | None, comparison: Comparison, port: int) -> None:
    async with connected(server) as client:
        material = await material_at_server(client, session)
        spell, note = await spelling_or_numbers(config.load().model.spelling, OF_A_SERVER)
        other = comparison.against or session
        if material.result is None:
            live = f"{client.url}/sessions/{session}"
            console().print(f"{session} is {material.lease.session.stage}: {live} follows it", soft_wrap=True)
        if html is None:
            page = comparison.address(session, other) if comparison.wanted else f"/sessions/{session}"
            source = TaskSource(client, material.lease.session.task_id)
            await serve(ViewerSite(source, spell, note), client.url, page, port)
        elif comparison.wanted:
            beside = rebuilt(await material_at_server(client, other), comparison.against_builder)
            compared = comparison_of(rebuilt(material, comparison.builder), beside, spell, note)
            write_document(html, comparison_document(compared), " and ".join(dict.fromkeys((session, other))))
        else:
            write_document(html, session_document(page_of(material, spell, note)), session)


def _listed(row: SessionRowView) -> ListedSession:
    return ListedSession(
        session_id=row.session_id,
        task_id=row.task_id,
        instruction="",
        stage=row.stage.value,
        attempt=row.attempt,
        reward=row.reward,
        failure=f"{row.failure_where}: {row.failure_type}" if row.failure_type else "",
        calls=row.calls,
        sampled_tokens=row.sampled_tokens,
    )
