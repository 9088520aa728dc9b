"""Messages and tools in one form for all dialects."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    arguments: str
    """JSON text exactly as the model wrote it."""
    call_id: str = ""


class Image(msgspec.Struct, frozen=True):
    url: str
    """`data:` with the bytes, or an address."""
    at: int
    """Index in the message's content at which it is inserted."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    images: tuple[Image, ...] = ()
    is_error: bool = False
    """A tool result that the harness marks as an error. Templates cannot express it; its text says what went
    wrong."""


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    """The name the model uses: with the namespace in front, if there is one."""
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON schema of the arguments."""
    freeform: bool = False
    """The harness expects plain text, not JSON: the model sees a function with one string argument, `input`."""
    namespace: str = ""
    """The harness's group of the tool; a reply to the harness names group and tool separately."""


class Delta(msgspec.Struct, frozen=True):
    """The next part of a reply that is final. One of the three is set."""

    reasoning: str = ""
    content: str = ""
    tool_call: ToolCall | None = None
