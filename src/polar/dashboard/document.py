"""One HTML file with everything in it: the values as JSON, and our own style and script.

Whatever is in the values stays text: JSON is embedded without `<`, `>` and `&`, the script writes only with
`textContent`, and the policy lets the browser run our script alone and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files

import msgspec

from polar.dashboard.page import ComparisonPage, RunPage, SessionPage

SESSION_SCRIPTS = (
    *("dom.js", "lazy.js", "flow.js", "tokens.js", "map.js", "turns.js", "walk.js"),
    *("compare_form.js", "session.js"),
)
COMPARISON_SCRIPTS = (
    *("dom.js", "lazy.js", "flow.js", "align.js", "compare.js"),
    *("compare_form.js", "compare_page.js"),
)
RUN_SCRIPTS = ("dom.js", "run.js")
AnyPage = SessionPage | ComparisonPage | RunPage
ESCAPES = {b"<": b"\\u003c", b">": b"\\u003e", b"&": b"\\u0026"}
"""In JSON these stand only inside strings, where the escape means the same."""


def session_document(page: SessionPage, *, served: bool = False) -> str:
    return _document(f"session {page.session_id}", page, SESSION_SCRIPTS, served=served)


def comparison_document(page: ComparisonPage, *, served: bool = False) -> str:
    names = " and ".join(dict.fromkeys((page.left.session_id, page.right.session_id)))
    return _document(f"{names} compared", page, COMPARISON_SCRIPTS, served=served)


def run_document(page: RunPage) -> str:
    return _document(f"run {page.run_id}", page, RUN_SCRIPTS, served=True)


def _document(title: str, page: AnyPage, scripts: tuple[str, ...], *, served: bool) -> str:
    style = _asset("page.css")
    script = "\n".join(['"use strict";', *map(_asset, scripts)])
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script, served=served)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{escape(title)} · Polar</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            "<noscript>This page needs its script to show the session.</noscript>",
            '<div id="page"></div>',
            f'<script type="application/json" id="values">{_embedded(page)}</script>',
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _policy(style: str, script: str, *, served: bool) -> str:
    allowed = {
        "default-src": "'none'",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "connect-src": "'self'" if served else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {sources}" for name, sources in allowed.items())


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _embedded(page: AnyPage) -> str:
    encoded = msgspec.json.encode(page)
    for character, escaped in ESCAPES.items():
        encoded = encoded.replace(character, escaped)
    return encoded.decode()


def _asset(name: str) -> str:
    return (files("polar.dashboard") / "assets" / name).read_text(encoding="utf-8")
