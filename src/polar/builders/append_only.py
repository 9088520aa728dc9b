"""Which calls a harness made by appending to an earlier one, read off the raw requests.

This is the measure a builder is held against, so it takes no builder's word: a pair counts when the later
request repeats the earlier one item for item and goes on with its reply, whatever became of the tokens. Costs
as much as there are request items.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from polar.types import Call, Message, ToolCall


@dataclass(frozen=True, slots=True)
class Appended:
    """One step of a conversation: calls that a harness appended to, and those that did it. There are several where
    equal requests got equal replies, or the step itself was asked for more than once; which went on from which
    cannot be told from requests."""

    earlier: tuple[str, ...]
    """Calls with one same request, whose reply the later ones repeat."""
    later: tuple[str, ...]
    """Calls with one same request."""


@dataclass(frozen=True, eq=False, slots=True)
class Beginning:
    """The first items of a request, told by their digest; requests that begin alike have their beginnings in
    common, so all of a session's take as much room as it has items."""

    key: bytes
    items: int
    shorter: Beginning | None
    """By one item."""

    def within(self) -> Iterator[Beginning]:
        """Itself and all shorter ones, longest first."""
        beginning: Beginning | None = self
        while beginning is not None:
            yield beginning
            beginning = beginning.shorter


class Received(NamedTuple):
    """A call whose reply the harness has."""

    call: Call
    messages: int
    """Of its request."""


def appended_steps(calls: Sequence[Call]) -> list[Appended]:
    """Each call is the later half of at most one step: with the longest received request it begins with."""
    received: dict[bytes, list[Received]] = {}
    request_of: dict[str | None, Beginning | None] = {}
    messages_of: dict[str | None, int] = {}
    steps: dict[bytes, Appended] = {}
    for call in calls:
        known = messages_of.get(call.parent_id, 0)
        messages = messages_of[call.call_id] = known + len(call.new_messages)
        beginning = _shared(request_of.get(call.parent_id), call.shared_items)
        request = request_of[call.call_id] = _extended(beginning, call.new_items)
        if request is None:
            continue
        shorter = request.shorter.within() if request.shorter else ()
        begun = next((beginning.key for beginning in shorter if beginning.key in received), None)
        earlier = _answered(call, known, received[begun]) if begun is not None else ()
        if earlier:
            before = steps.get(request.key, Appended((), ()))
            known_earlier = dict.fromkeys((*before.earlier, *earlier))
            steps[request.key] = Appended(tuple(known_earlier), (*before.later, call.call_id))
        if call.received:
            received.setdefault(request.key, []).append(Received(call, messages))
    return list(steps.values())


def _shared(request: Beginning | None, items: int) -> Beginning | None:
    """The beginning of a request that has so many items, or all of it."""
    beginnings = request.within() if request else ()
    return next((beginning for beginning in beginnings if beginning.items <= items), None)


def _extended(beginning: Beginning | None, items: tuple[bytes, ...]) -> Beginning | None:
    """Equal keys mean equal beginnings."""
    for item in items:
        key = hashlib.blake2b((beginning.key if beginning else b"") + item, digest_size=16).digest()
        beginning = Beginning(key, beginning.items + 1 if beginning else 1, beginning)
    return beginning


def _answered(call: Call, known: int, candidates: list[Received]) -> tuple[str, ...]:
    """Which of the calls with one same request `call` may go on from: their reply stands again in the request,
    where theirs ends. `known` messages are the parent's; a place among them is one the harness respelled after, or
    the longer request would have been found."""
    return tuple(
        earlier.call.call_id
        for earlier in candidates
        if 0 <= (place := earlier.messages - known) < len(call.new_messages)
        and repeats(call.new_messages[place], earlier.call.response)
    )


def repeats(echo: Message, reply: Message) -> bool:
    """Whether the harness sent the reply back unedited. It may have lost reasoning, ids of tool calls, outer
    white space and the spelling of JSON."""
    return (
        echo.role == "assistant"
        and echo.content.strip() == reply.content.strip()
        and len(echo.tool_calls) == len(reply.tool_calls)
        and all(map(_same_tool_call, echo.tool_calls, reply.tool_calls))
    )


def _same_tool_call(one: ToolCall, other: ToolCall) -> bool:
    return one.name == other.name and _canonical(one.arguments) == _canonical(other.arguments)


def _canonical(arguments: str) -> str:
    """One spelling for equal JSON values; text that is no JSON stays as it is."""
    try:
        return json.dumps(json.loads(arguments, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _number(text: str) -> Any:
    """1.0 and 1 are the same number, and a harness in JavaScript writes the second for the first."""
    value = float(text)
    return int(value) if value.is_integer() else value
