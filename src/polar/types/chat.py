"""The canonical conversation, whatever dialect it came in."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    arguments: str
    """JSON text as the model wrote it; never re-serialised."""
    call_id: str = ""


class Image(msgspec.Struct, frozen=True):
    url: str
    """`data:` with the bytes in it, or an address."""
    at: int
    """Before which character of the message's content it stands."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    images: tuple[Image, ...] = ()
    is_error: bool = False
    """A tool's result that the harness calls an error. Templates have no word for it; its text says what went
    wrong."""


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    """What the model calls it: with its namespace in front, where it has one."""
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON schema of the arguments."""
    freeform: bool = False
    """The harness wants plain text and no JSON: the model sees a function with one string, `input`."""
    namespace: str = ""
    """The group a harness keeps the tool in; its reply names group and tool apart."""


class Delta(msgspec.Struct, frozen=True):
    """The next part of a reply, as far as it will not change any more. One of the three is set."""

    reasoning: str = ""
    content: str = ""
    tool_call: ToolCall | None = None
