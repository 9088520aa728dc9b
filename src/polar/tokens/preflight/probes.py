"""Conversations with which a renderer is checked before a session relies on it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polar.types import Message, Tool, ToolCall

TOOL = Tool(
    name="look",
    description="Looks at a place.",
    parameters={"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
)
SYSTEM = Message(role="system", content="You are brief.")
QUESTION = Message(role="user", content="What is there, in Zürich 北京 \U0001f980?")
BEGINNING = (SYSTEM, QUESTION)
REPLY = Message(role="assistant", content="A red house.")
CALL = Message(
    role="assistant", tool_calls=(ToolCall(name="look", arguments='{"place": "Zürich"}', call_id="c1"),)
)
TWO_CALLS = Message(
    role="assistant",
    tool_calls=(*CALL.tool_calls, ToolCall(name="look", arguments='{"place": "Genève"}', call_id="c2")),
)
NEXT_QUESTION = Message(role="user", content="And behind it?")
RESULT = Message(role="tool", content='Nothing "much".', tool_call_id="c1")
SECOND_RESULT = Message(role="tool", content="A lake.", tool_call_id="c2")

APPENDED: dict[str, tuple[Message, tuple[Message, ...]]] = {
    "user": (REPLY, (NEXT_QUESTION,)),
    "tool": (CALL, (RESULT,)),
    "tool and user": (CALL, (RESULT, NEXT_QUESTION)),
    "system": (REPLY, (Message(role="system", content="Be kind."), NEXT_QUESTION)),
}
"""Replies, and messages that may follow them."""


def thinking(reply: Message) -> Message:
    return msgspec.structs.replace(reply, reasoning="I look twice.")


class ProbeConversation(msgspec.Struct, frozen=True):
    name: str
    messages: Sequence[Message]
    tools: Sequence[Tool] = ()


FIRST_PROMPTS = (
    ProbeConversation("user", [QUESTION]),
    ProbeConversation("system and user", BEGINNING),
    ProbeConversation("tools", [QUESTION], [TOOL]),
    ProbeConversation("system, user and tools", BEGINNING, [TOOL]),
)
"""Without a reply."""

HISTORIES = (
    ProbeConversation("a reply", [*BEGINNING, REPLY, NEXT_QUESTION]),
    ProbeConversation("a tool loop", [*BEGINNING, CALL, RESULT, REPLY, NEXT_QUESTION], [TOOL]),
    ProbeConversation("a call and its result", [*BEGINNING, CALL, RESULT], [TOOL]),
    ProbeConversation("two calls in one reply", [*BEGINNING, TWO_CALLS, RESULT, SECOND_RESULT], [TOOL]),
    ProbeConversation("a result and a user message", [*BEGINNING, CALL, RESULT, NEXT_QUESTION], [TOOL]),
    ProbeConversation("thinking before a reply", [*BEGINNING, thinking(REPLY), NEXT_QUESTION]),
    ProbeConversation("thinking in a tool loop", [*BEGINNING, thinking(CALL), RESULT], [TOOL]),
    ProbeConversation(
        "thinking before a user message",
        [*BEGINNING, thinking(CALL), RESULT, thinking(REPLY), NEXT_QUESTION],
        [TOOL],
    ),
    ProbeConversation("a system message later on", [*BEGINNING, REPLY, SYSTEM, NEXT_QUESTION]),
)
"""With replies."""
