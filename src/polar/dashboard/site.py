"""A run on disk as pages: the list of its sessions, the page of each, and search over all of them.

Read-only. It reads the run again for each page, so a run that is still going shows what it has by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from polar import __version__
from polar.dashboard.document import run_document, session_document
from polar.dashboard.material import material_of_run
from polar.dashboard.page import ListedSession, RunPage
from polar.dashboard.session_page import page_of
from polar.dashboard.spelling import Spelling
from polar.errors import PolarError
from polar.runs.stored import StoredSession, read_run_async
from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.types import Call, Message

HEADERS = {
    "content-security-policy": "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
MOST_HITS = 200
AROUND = 60
"""Characters shown before and after what was found."""


class RunSite:
    """The pages of one run. `note` stands on the page of each session."""

    def __init__(self, run: RunPaths, spell: Spelling, note: str = "") -> None:
        self._run = run
        self._spell = spell
        self._note = note

    def app(self) -> Starlette:
        routes = [
            Route("/", self._list),
            Route("/session/{session_id}", self._session),
            Route("/search", self._search),
        ]
        # A page of another site that has its name resolved to this machine sends its own name.
        local = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
        return Starlette(routes=routes, middleware=[local])

    async def _list(self, request: Request) -> Response:
        run = await read_run_async(self._run)
        sessions = [_listed(session) for session in run]
        page = RunPage(run.run_id, __version__, run.record.started, sessions)
        return HTMLResponse(run_document(page), headers=HEADERS)

    async def _session(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        async with await Journal.open(self._run.journal, read_only=True) as journal:
            known = session_id in await journal.session_ids()
        if not known:
            return PlainTextResponse("no such session in this run", status_code=404, headers=HEADERS)
        try:
            material = await material_of_run(self._run, session_id)
        except PolarError as error:
            return PlainTextResponse(str(error), status_code=500, headers=HEADERS)
        page = await asyncio.to_thread(page_of, material, self._spell, self._note)
        return HTMLResponse(session_document(page, served=True), headers=HEADERS)

    async def _search(self, request: Request) -> Response:
        wanted = request.query_params.get("q", "").strip().lower()
        hits: list[dict[str, object]] = []
        async with aclosing(self._hits(wanted)) as found:
            while wanted and len(hits) < MOST_HITS and (hit := await anext(found, None)) is not None:
                hits.append(hit)
        return JSONResponse({"hits": hits, "more": len(hits) == MOST_HITS}, headers=HEADERS)

    async def _hits(self, wanted: str) -> AsyncGenerator[dict[str, object]]:
        """One for each call that has the text."""
        async with await Journal.open(self._run.journal, read_only=True) as journal:
            for session_id in await journal.session_ids():
                for number, call in enumerate(await journal.calls(session_id), 1):
                    found = _found(call, wanted)
                    if found is not None:
                        yield {"session_id": session_id, "call": number, "text": found}


def _listed(session: StoredSession) -> ListedSession:
    result = session.result
    failure = result.failure if result else None
    return ListedSession(
        session_id=session.session_id,
        task_id=session.task.task_id or "",
        instruction=session.task.instruction[:300],
        stage=session.stage.value,
        attempt=session.lease.session.attempt,
        reward=result.reward if result else None,
        failure=f"{failure.where}: {failure.type}" if failure else "",
        calls=session.call_count,
        sampled_tokens=session.sampled_tokens,
    )


def _found(call: Call, wanted: str) -> tuple[str, str, str] | None:
    """The first place of the text in a call's new messages and reply, with what stands around it."""
    for text in _texts(call):
        at = text.lower().find(wanted)
        if at >= 0:
            end = at + len(wanted)
            return text[max(0, at - AROUND) : at], text[at:end], text[end : end + AROUND]
    return None


def _texts(call: Call) -> Iterator[str]:
    messages: tuple[Message, ...] = (*call.new_messages, call.response)
    for message in messages:
        yield from (message.content, message.reasoning)
        for tool_call in message.tool_calls:
            yield from (tool_call.name, tool_call.arguments)
