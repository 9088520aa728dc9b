"""Marks what the renderer of a session added to the prompt of a call."""

from __future__ import annotations

from polar import registry
from polar.cli.show.shown_session import ShownSession
from polar.errors import PolarError
from polar.tokens import additions
from polar.types import Call


def added_to(session: ShownSession, call: Call) -> str:
    """Of a session at a server, the renderer is that of the config here: its word counts only if the session's
    own result says that something was added."""
    if session.folder is None and not _noted(session):
        return ""
    if (spec := session.renderer) is None:
        return ""
    try:
        return additions.added_to(registry.make("renderer", spec), call)
    except PolarError:  # a renderer of another machine; the result's note remains
        return ""


def _noted(session: ShownSession) -> bool:
    notes = session.result.notes if session.result else ()
    return any(note.startswith(additions.ADDED) for note in notes)
