"""Routes of the dashboard's pages. Who has not logged in is led to the login page, and back from there.

The pages ask the server's data routes for everything else, with the login's cookie.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from fastapi.routing import APIRoute

from polar.dashboard.document import asset
from polar.dashboard.live.shell import HEADERS, LivePageName, comparison_frame, live_page, session_frame
from polar.dashboard.live.transcript import TracesOf, Transcripts
from polar.dashboard.material import BUILDERS
from polar.server.access.auth import Access
from polar.server.app import Pages
from polar.server.errors import Invalid
from polar.server.routes.parameters import UNKNOWN, PathId
from polar.server.state import State
from polar.types import ID_PATTERN, Spec

PAGES: dict[str, tuple[LivePageName, str]] = {
    "/": ("overview", "What runs, what fails and what waits"),
    "/sessions": ("sessions", "The sessions, with filters"),
    "/groups": ("groups", "Groups and how their rewards differ"),
    "/nodes": ("nodes", "Gateway nodes and their run slots"),
    "/training": ("training", "The curves of trainers"),
    "/log": ("log", "The log of server and nodes"),
    "/actions": ("actions", "Who did what: the record of control actions"),
}
QuerySession = Annotated[str, Query(pattern=ID_PATTERN)]
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def dashboard(renderer: Spec | None = None) -> Pages:
    """`RolloutServer(..., pages=dashboard(renderer))`. `renderer`: that of the nodes' model, which spells tokens;
    None: they are shown as numbers."""

    def routers(state: State, access: Access) -> list[APIRouter]:
        made = DashboardRoutes(access, Transcripts(state, renderer))
        return [made.open_router(), made.router()]

    return routers


class DashboardRoutes:
    def __init__(self, access: Access, transcripts: Transcripts) -> None:
        self._access = access
        self._transcripts = transcripts

    def open_router(self) -> APIRouter:
        """What anyone may load."""
        router = APIRouter(tags=["pages"], default_response_class=HTMLResponse)
        router.get("/login", summary="The login page", response_model=None)(self.login)
        router.get("/favicon.ico", include_in_schema=False)(_icon)
        return router

    def router(self) -> APIRouter:
        access = self._access

        class PageRoute(APIRoute):
            def get_route_handler(self) -> Handler:
                handle = super().get_route_handler()

                async def login_first(request: Request) -> Response:
                    if await access.logged_in(request):
                        return await handle(request)
                    return _refusal(access, request)

                return login_first

        router = APIRouter(tags=["pages"], route_class=PageRoute, default_response_class=HTMLResponse)
        for path, (name, summary) in PAGES.items():
            router.get(path, summary=summary, name=name)(_showing(name))
        router.get("/sessions/{session_id}", summary="A session in the trace viewer", responses=UNKNOWN)(
            self.session
        )
        router.get("/compare", summary="Two sessions, or two builders, side by side", responses=UNKNOWN)(
            self.compare
        )
        return router

    async def session(self, session_id: PathId) -> HTMLResponse:
        """Its calls, tokens, verdict and log, as far as they are at the server."""
        return session_frame(*await self._transcripts.page(session_id))

    async def compare(
        self, left: QuerySession, right: QuerySession, left_builder: str = "", right_builder: str = ""
    ) -> HTMLResponse:
        """Their traces: as stored, or as a built-in builder makes them now of the same calls."""
        if unknown := {left_builder, right_builder} - {"", *BUILDERS}:
            raise Invalid(f"no builder {min(unknown)[:100]!r}; there are {', '.join(BUILDERS)}")
        sides = TracesOf(left, left_builder), TracesOf(right, right_builder)
        return comparison_frame(await self._transcripts.comparison(*sides))

    async def login(self, request: Request, next: str = "/") -> Response:
        """Asks for the control token, which the page sends to `POST /login`, and goes on to `next`."""
        if await self._access.logged_in(request):
            return RedirectResponse(own_path(next), 303, HEADERS)
        return live_page("login") if self._access.named(request) else _refusal(self._access, request)


def own_path(wanted: str) -> str:
    """`wanted` if it is a path of this server, else the overview."""
    return wanted if re.fullmatch(r"/([A-Za-z0-9_][^\\\s]*)?(\?[^\\\s]*)?", wanted) else "/"


def _showing(name: LivePageName) -> Callable[[], Coroutine[Any, Any, HTMLResponse]]:
    async def page() -> HTMLResponse:
        return live_page(name)

    return page


def _refusal(access: Access, request: Request) -> Response:
    if not access.named(request):
        why = "This server does not know itself under this name; add it to server.names in its polar.toml."
        return PlainTextResponse(why, 421, HEADERS)
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"/login?next={quote(path, safe='')}", 303, HEADERS)


async def _icon() -> Response:
    headers = {"cache-control": "max-age=86400", "x-content-type-options": "nosniff"}
    return Response(asset("live/icon.svg"), media_type="image/svg+xml", headers=headers)
