"""Sessions as pages: their list, the page of each, two side by side, and search over all of them. Read-only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from polar.dashboard.comparison import comparison_of
from polar.dashboard.document import comparison_document, run_document, session_document
from polar.dashboard.material import BUILDERS, PageMaterial, rebuilt
from polar.dashboard.session_page import page_of
from polar.dashboard.source import PageSource, UnknownSession
from polar.dashboard.spelling import Spelling
from polar.errors import PolarError
from polar.types import Call, Message

HEADERS = {
    "content-security-policy": "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
MOST_HITS = 200
MOST_OTHERS = 2000
"""Sessions that a page suggests for a comparison."""
AROUND = 60
"""Characters shown before and after what was found."""


class ViewerSite:
    """`note` stands on the page of each session."""

    def __init__(self, source: PageSource, spell: Spelling, note: str = "") -> None:
        self._source = source
        self._spell = spell
        self._note = note

    def app(self) -> Starlette:
        routes = [
            Route("/", self._list),
            Route("/sessions/{session_id}", self._session),
            Route("/compare", self._compare),
            Route("/search", self._search),
        ]
        # A page of another site that has its name resolved to this machine sends its own name.
        local = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
        refusals = {UnknownSession: _not_found, PolarError: _refused}
        return Starlette(routes=routes, middleware=[local], exception_handlers=refusals)

    async def _list(self, request: Request) -> Response:
        return HTMLResponse(run_document(await self._source.listed()), headers=HEADERS)

    async def _session(self, request: Request) -> Response:
        material = await self._source.material(request.path_params["session_id"])
        page = await asyncio.to_thread(page_of, material, self._spell, self._note)
        choice = msgspec.structs.replace(page, others=await self._others(), builders=BUILDERS)
        return HTMLResponse(session_document(choice, served=True), headers=HEADERS)

    async def _compare(self, request: Request) -> Response:
        left, right = await self._side(request, "left"), await self._side(request, "right")
        page = await asyncio.to_thread(comparison_of, left, right, self._spell, self._note)
        choice = msgspec.structs.replace(page, others=await self._others(), builders=BUILDERS)
        return HTMLResponse(comparison_document(choice, served=True), headers=HEADERS)

    async def _side(self, request: Request, side: str) -> PageMaterial:
        builder = request.query_params.get(f"{side}_builder", "")
        if builder and builder not in BUILDERS:
            raise UnknownSession(f"no builder of that name; there are {', '.join(BUILDERS)}")
        material = await self._source.material(request.query_params.get(side, ""))
        return await asyncio.to_thread(rebuilt, material, builder)

    async def _others(self) -> list[str]:
        return list(await self._source.session_ids())[:MOST_OTHERS]

    async def _search(self, request: Request) -> Response:
        wanted = request.query_params.get("q", "").strip().lower()
        hits: list[dict[str, object]] = []
        async with aclosing(self._hits(wanted)) as found:
            while wanted and len(hits) < MOST_HITS and (hit := await anext(found, None)) is not None:
                hits.append(hit)
        return JSONResponse({"hits": hits, "more": len(hits) == MOST_HITS}, headers=HEADERS)

    async def _hits(self, wanted: str) -> AsyncGenerator[dict[str, object]]:
        """One for each call that has the text."""
        for session_id in await self._source.session_ids():
            for number, call in enumerate(await self._source.calls(session_id), 1):
                found = _found(call, wanted)
                if found is not None:
                    yield {"session_id": session_id, "call": number, "text": found}


async def _not_found(request: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), status_code=404, headers=HEADERS)


async def _refused(request: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), status_code=500, headers=HEADERS)


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
