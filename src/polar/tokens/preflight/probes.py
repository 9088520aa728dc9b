"""Probe conversations: what a renderer is tried out with before a session relies on it."""

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
SAID = Message(role="assistant", content="A red house.")
CALLED = Message(
    role="assistant", tool_calls=(ToolCall(name="look", arguments='{"place": "Zürich"}', call_id="c1"),)
)
CALLED_TWICE = Message(
    role="assistant",
    tool_calls=(*CALLED.tool_calls, ToolCall(name="look", arguments='{"place": "Genève"}', call_id="c2")),
)
ASKED = Message(role="user", content="And behind it?")
RESULT = Message(role="tool", content='Nothing "much".', tool_call_id="c1")
SECOND_RESULT = Message(role="tool", content="A lake.", tool_call_id="c2")

APPENDED: dict[str, tuple[Message, tuple[Message, ...]]] = {
    "user": (SAID, (ASKED,)),
    "tool": (CALLED, (RESULT,)),
    "tool and user": (CALLED, (RESULT, ASKED)),
    "system": (SAID, (Message(role="system", content="Be kind."), ASKED)),
}
"""What may follow a reply: the reply, and what comes after it."""


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
"""Nobody has replied yet."""

HISTORIES = (
    ProbeConversation("a reply", [*BEGINNING, SAID, ASKED]),
    ProbeConversation("a tool loop", [*BEGINNING, CALLED, RESULT, SAID, ASKED], [TOOL]),
    ProbeConversation("a call and its result", [*BEGINNING, CALLED, RESULT], [TOOL]),
    ProbeConversation("two calls in one reply", [*BEGINNING, CALLED_TWICE, RESULT, SECOND_RESULT], [TOOL]),
    ProbeConversation("a result and the user's word", [*BEGINNING, CALLED, RESULT, ASKED], [TOOL]),
    ProbeConversation("thinking before a reply", [*BEGINNING, thinking(SAID), ASKED]),
    ProbeConversation("thinking in a tool loop", [*BEGINNING, thinking(CALLED), RESULT], [TOOL]),
    ProbeConversation(
        "thinking before the user's word", [*BEGINNING, thinking(CALLED), RESULT, thinking(SAID), ASKED], [TOOL]
    ),
    ProbeConversation("a system message later on", [*BEGINNING, SAID, SYSTEM, ASKED]),
)
"""Something was said."""
