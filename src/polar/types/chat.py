"""The canonical conversation, whatever dialect it came in."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class ToolCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """JSON text as the model wrote it; never re-serialised."""
    call_id: str = ""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON schema of the arguments."""


class CallProfile(msgspec.Struct, frozen=True):
    """What the gateway must know of a harness to read its calls."""

    auxiliary_without_tools: bool = False
    """Calls that declare no tools are titles or summaries, not the agent at work."""
