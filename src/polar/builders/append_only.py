"""Which calls a harness made by appending to an earlier one, read from the raw requests.

Builders are measured by this, so it does not depend on them: a pair counts if the later request repeats the
earlier one item by item and continues with its reply, whatever happened to the tokens. The cost is linear in
request items.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from polar.types import Call, Message, ToolCall


class AppendStep(NamedTuple):
    """One step of a conversation: the calls that a harness appended to, and the calls that did it. There are
    several if equal requests got equal replies, or if the step was requested more than once; requests do not show
    which call continues which."""

    earlier: tuple[str, ...]
    """Calls with the same request, whose reply the later ones repeat."""
    later: tuple[str, ...]
    """Calls with the same request."""


@dataclass(frozen=True, eq=False, slots=True)
class RequestPrefix:
    """The first items of a request. Requests with a common beginning share their prefixes, so all prefixes of a
    session take as much memory as it has items."""

    digest: bytes
    items: int
    shorter: RequestPrefix | None
    """Without the last item."""

    def shrinking(self) -> Iterator[RequestPrefix]:
        """Itself and all shorter ones, longest first."""
        prefix: RequestPrefix | None = self
        while prefix is not None:
            yield prefix
            prefix = prefix.shorter


class ReceivedCall(NamedTuple):
    """A call whose reply the harness has."""

    call: Call
    messages: int
    """Number of messages in its request."""


def appended_steps(calls: Sequence[Call]) -> list[AppendStep]:
    """Each call is the later half of at most one step: with the longest received request it begins with."""
    received: dict[bytes, list[ReceivedCall]] = {}
    request_of: dict[str | None, RequestPrefix | None] = {}
    messages_of: dict[str | None, int] = {}
    steps: dict[bytes, AppendStep] = {}
    for call in calls:
        known = messages_of.get(call.parent_id, 0)
        messages = messages_of[call.call_id] = known + len(call.new_messages)
        shared = _shared(request_of.get(call.parent_id), call.shared_items)
        request = request_of[call.call_id] = _extended(shared, call.new_items)
        if request is None:
            continue
        shorter = request.shorter.shrinking() if request.shorter else ()
        longest = next((prefix.digest for prefix in shorter if prefix.digest in received), None)
        earlier = _appended_to(call, known, received[longest]) if longest is not None else ()
        if earlier:
            before = steps.get(request.digest, AppendStep((), ()))
            known_earlier = dict.fromkeys((*before.earlier, *earlier))
            steps[request.digest] = AppendStep(tuple(known_earlier), (*before.later, call.call_id))
        if call.received:
            received.setdefault(request.digest, []).append(ReceivedCall(call, messages))
    return list(steps.values())


def _shared(request: RequestPrefix | None, items: int) -> RequestPrefix | None:
    """The prefix of a request with at most this many items."""
    prefixes = request.shrinking() if request else ()
    return next((prefix for prefix in prefixes if prefix.items <= items), None)


def _extended(prefix: RequestPrefix | None, items: tuple[bytes, ...]) -> RequestPrefix | None:
    for item in items:
        digest = hashlib.blake2b((prefix.digest if prefix else b"") + item, digest_size=16).digest()
        prefix = RequestPrefix(digest, prefix.items + 1 if prefix else 1, prefix)
    return prefix


def _appended_to(call: Call, known: int, candidates: list[ReceivedCall]) -> tuple[str, ...]:
    """Which of the calls with the same request `call` may continue: those whose reply it repeats right after their
    messages. The first `known` messages are the parent's; a reply among those was respelled later, or the longer
    request would have been found."""
    return tuple(
        earlier.call.call_id
        for earlier in candidates
        if 0 <= (position := earlier.messages - known) < len(call.new_messages)
        and repeats(call.new_messages[position], earlier.call.response)
    )


def repeats(echo: Message, reply: Message) -> bool:
    """Whether the harness sent the reply back unedited. Reasoning, ids of tool calls, outer white space and the
    spelling of JSON may differ."""
    return (
        echo.role == "assistant"
        and echo.content.strip() == reply.content.strip()
        and len(echo.tool_calls) == len(reply.tool_calls)
        and all(map(_same_tool_call, echo.tool_calls, reply.tool_calls))
    )


def _same_tool_call(one: ToolCall, other: ToolCall) -> bool:
    return one.name == other.name and _canonical(one.arguments) == _canonical(other.arguments)


def _canonical(arguments: str) -> str:
    """One spelling for equal JSON values; text that is no JSON stays."""
    try:
        return json.dumps(json.loads(arguments, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _number(text: str) -> Any:
    """1.0 and 1 are the same number: a harness in JavaScript writes the second for the first."""
    value = float(text)
    return int(value) if value.is_integer() else value
