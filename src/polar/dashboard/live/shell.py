"""The documents of the dashboard. A page is a frame that its script fills from the server's routes.

Scripts of the dashboard stand in a block of their own, so that their names do not meet those of the trace viewer,
which shares the page of a session with them.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from fastapi.responses import HTMLResponse

from polar.dashboard.document import COMPARISON_SCRIPTS, SESSION_SCRIPTS, DocumentParts, asset, joined
from polar.dashboard.page import ComparisonPage, SessionPage

LivePageName = Literal[
    "login", "overview", "sessions", "session", "compare", "groups", "nodes", "training", "log", "actions"
]
SHARED = tuple(f"live/{name}.js" for name in ("requests", "shared", "curves", "charts", "dialogs", "frame"))
LOGIN = ("live/requests.js", "live/login.js")
STYLES = ("page.css", "live/live.css")
ICON = "/favicon.ico"
HEADERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}


def live_page(name: LivePageName) -> HTMLResponse:
    return _answer(_parts(name), {"page": name})


def session_frame(page: SessionPage, version: int) -> HTMLResponse:
    """The trace viewer inside the dashboard. `version`: of what is shown of a session that runs."""
    scripts = (joined(SESSION_SCRIPTS), _scripts("session"))
    parts = DocumentParts(f"session {page.session_id}", scripts, STYLES, connects=True, icon=ICON, version=version)
    return _answer(parts, page)


def comparison_frame(page: ComparisonPage) -> HTMLResponse:
    """Two sessions side by side inside the dashboard."""
    scripts = (joined(COMPARISON_SCRIPTS), _scripts("compare"))
    return _answer(DocumentParts("compared", scripts, STYLES, connects=True, icon=ICON), page)


def _answer(parts: DocumentParts, values: object) -> HTMLResponse:
    policy = {"content-security-policy": f"{parts.policy}; frame-ancestors 'none'"}
    return HTMLResponse(parts.html(values), headers=HEADERS | policy)


@cache
def _parts(name: LivePageName) -> DocumentParts:
    return DocumentParts(name, (joined(("dom.js",)), _scripts(name)), STYLES, connects=True, icon=ICON)


@cache
def _scripts(name: LivePageName) -> str:
    chosen = LOGIN if name == "login" else (*SHARED, f"live/{name}.js")
    return "\n".join(['"use strict";', "{", *map(asset, chosen), "}"])
