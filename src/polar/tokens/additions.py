"""What a renderer adds to prompts that the harness did not send, such as the worked examples of a small model."""

from __future__ import annotations

from collections.abc import Iterable

from polar.tokens.base import AddingRenderer, Renderer
from polar.types import Call

ADDED = "the renderer added"


def added_to(renderer: Renderer | None, call: Call) -> str:
    """A sentence about what is in the prompt of a call beside the harness's messages. Empty: nothing, or what its
    parent's prompt already has."""
    if call.continues or call.usage is not None or not isinstance(renderer, AddingRenderer):
        return ""
    added = renderer.added(call.tools or ())
    return f"{ADDED} {added} to the prompt; the harness did not send them" if added else ""


def additions_of(renderer: Renderer | None, calls: Iterable[Call]) -> tuple[str, ...]:
    """The same for a whole session: each sentence once."""
    return tuple(dict.fromkeys(filter(None, (added_to(renderer, call) for call in calls))))
