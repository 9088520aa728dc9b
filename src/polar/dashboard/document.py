"""One HTML file with everything in it: the values as JSON, and our own style and script.

Whatever is in the values stays text: JSON is embedded without `<`, `>` and `&`, the script writes only with
`textContent`, and the policy lets the browser run our script alone and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
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
ESCAPES = {b"<": b"\\u003c", b">": b"\\u003e", b"&": b"\\u0026"}
"""In JSON these stand only inside strings, where the escape means the same."""


def session_document(page: SessionPage, *, served: bool = False) -> str:
    return DocumentParts(f"session {page.session_id}", (joined(SESSION_SCRIPTS),), connects=served).html(page)


def comparison_document(page: ComparisonPage, *, served: bool = False) -> str:
    names = " and ".join(dict.fromkeys((page.left.session_id, page.right.session_id)))
    return DocumentParts(f"{names} compared", (joined(COMPARISON_SCRIPTS),), connects=served).html(page)


def run_document(page: RunPage) -> str:
    return DocumentParts(page.title or f"run {page.run_id}", (joined(RUN_SCRIPTS),), connects=True).html(page)


@dataclass(frozen=True)
class DocumentParts:
    """What a document has beside its values."""

    title: str
    scripts: tuple[str, ...]
    """Their texts; each becomes one element."""
    styles: tuple[str, ...] = ("page.css",)
    """Assets."""
    connects: bool = False
    """The page may ask the server that it came from."""
    icon: str = ""
    """Its address; empty: the page has none."""
    version: int = 0
    """Of what a session that runs has done so far; 0: the page shows none of that."""

    def html(self, values: object) -> str:
        icon = [f'<link rel="icon" href="{escape(self.icon)}">'] if self.icon else []
        return "\n".join(
            [
                "<!doctype html>",
                '<html lang="en">',
                "<head>",
                '<meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{self.policy}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<meta name="referrer" content="no-referrer">',
                f"<title>{escape(self.title)} · Polar</title>",
                *icon,
                f"<style>{self._style}</style>",
                "</head>",
                "<body>",
                "<noscript>This page needs its script to show anything.</noscript>",
                f'<div id="page" data-version="{self.version}"></div>',
                f'<script type="application/json" id="values">{_embedded(values)}</script>',
                *(f"<script>{script}</script>" for script in self.scripts),
                "</body>",
                "</html>",
                "",
            ]
        )

    @property
    def policy(self) -> str:
        """The content security policy."""
        allowed = {
            "default-src": "'none'",
            "style-src": _hash(self._style),
            "script-src": " ".join(map(_hash, self.scripts)),
            "connect-src": "'self'" if self.connects else "'none'",
            **({"img-src": "'self'"} if self.icon else {}),
            "base-uri": "'none'",
            "form-action": "'none'",
        }
        return "; ".join(f"{name} {sources}" for name, sources in allowed.items())

    @property
    def _style(self) -> str:
        return "".join(map(asset, self.styles))


def joined(scripts: Iterable[str]) -> str:
    """Assets as one script."""
    return "\n".join(['"use strict";', *map(asset, scripts)])


def asset(name: str) -> str:
    return (files("polar.dashboard") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _embedded(values: object) -> str:
    encoded = msgspec.json.encode(values)
    for character, escaped in ESCAPES.items():
        encoded = encoded.replace(character, escaped)
    return encoded.decode()
