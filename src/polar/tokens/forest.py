"""The forest of one session's calls: where a request attaches, and which exact tokens it continues.

A request attaches to the deepest stored call whose messages begin it. That call's tokens stay as they were
sampled and only what is new is rendered, so *prompt starts with parent's prompt + completion* holds by
construction. Where no call begins the request, or the family cannot bridge, the whole request is rendered on a
branch of its own, and the reason is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from polar.tokens.base import Renderer
from polar.tokens.digest import TokenDigest
from polar.tokens.match import extend_path, message_key, tolerances, tools_key
from polar.types import Call, Message, TokenIds, Tool, token_ids

T = TypeVar("T")
EMPTY_TURN = ("empty_turn",)


class PreparedPrompt(msgspec.Struct, frozen=True):
    """A request as tokens, and how it hangs together with what came before."""

    parent_id: str | None
    continues: bool
    new_prompt_ids: TokenIds
    prompt_ids: TokenIds
    """All of it, as the engine gets it."""
    prompt_digest: bytes
    new_messages: tuple[Message, ...]
    break_reason: str = ""
    tolerant: tuple[str, ...] = ()


class _Node(msgspec.Struct, frozen=True):
    call: Call
    messages: int
    """How many messages its request had."""
    end: bytes
    """Path of its request and its reply."""
    items: tuple[bytes, ...]
    """Digests of its whole raw request."""
    digest: TokenDigest
    """Of prompt and completion."""


class Place(msgspec.Struct, frozen=True):
    """Where a request attaches."""

    messages: Sequence[Message]
    tools: tuple[Tool, ...]
    parent: _Node | None
    known: int = 0
    """How many messages the parent's request and its reply make up."""
    why_new_root: str = ""
    tolerant: tuple[str, ...] = ()
    """What was overlooked in the history to find the parent."""

    @property
    def new(self) -> tuple[Message, ...]:
        """What the parent has not seen."""
        return tuple(self.messages[self.known :])

    @property
    def new_characters(self) -> int:
        """About what there is to render."""
        return sum(len(message.content) for message in self.messages[self.known :])

    @property
    def depth(self) -> int:
        """How much of what was said here it goes on from."""
        return self.parent.messages if self.parent else 0

    @property
    def edited(self) -> str:
        return "history_edited" if any(message.role == "assistant" for message in self.new) else ""


class CallForest:
    """Not thread-safe: one request is prepared or added at a time."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._nodes: dict[str, _Node] = {}
        self._ends: dict[bytes, list[str]] = {}
        """Path of a call's request and its reply, to the calls that end there, oldest first."""
        self._received: set[str] = set()
        self._seen: set[bytes] = set()
        """Paths of every request, message by message, to tell why one does not attach."""
        self._last: tuple[tuple[Message, ...], list[bytes]] = ((), [])
        """The request before, and its paths: the next one usually begins with all of it."""

    def prepare(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> PreparedPrompt:
        place = self.find(messages, tools)
        return self.bridge(place) or self.render(place)

    def find(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> Place:
        place = self._find(messages, tools)
        spoken = [message for message in messages if not _says_nothing(message)]
        if len(spoken) == len(messages):
            return place
        # After a broken reply harnesses leave an empty turn in their history, which nobody said.
        without = self._find(spoken, tools)
        return msgspec.structs.replace(without, tolerant=EMPTY_TURN) if without.depth > place.depth else place

    def _find(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> Place:
        paths = self._paths_of(messages, tools)
        for count in range(len(messages) - 1, 0, -1):
            nodes = [self._nodes[call_id] for call_id in self._ends.get(paths[count], ())]
            candidates = [node for node in nodes if self._is_told_alike(node, messages)]
            if candidates:
                return Place(messages, tools, self._choose(candidates, messages[count - 1]), count)
        return Place(messages, tools, None, why_new_root=self._why_new_root(paths))

    def bridge(self, place: Place) -> PreparedPrompt | None:
        """The parent's exact tokens and what is new. None where there is no parent, or its family cannot go on
        from it exactly."""
        parent, echo = place.parent, place.known - 1
        if parent is None:
            return None
        prompt_ids, completion_ids = self._prompt_of(parent.call), parent.call.completion_ids
        bridge = self._renderer.bridge(prompt_ids, completion_ids, place.new, place.tools)
        if bridge is None:
            return None
        return PreparedPrompt(
            parent_id=parent.call.call_id,
            continues=True,
            new_prompt_ids=bridge,
            prompt_ids=prompt_ids + completion_ids + bridge,
            prompt_digest=parent.digest.extended(bridge).value(),
            new_messages=tuple(place.messages[echo:]),
            break_reason=place.edited,
            tolerant=(*place.tolerant, *tolerances(parent.call.response, place.messages[echo])),
        )

    def render(self, place: Place) -> PreparedPrompt:
        """The whole request, on a branch of its own."""
        parent, echo = place.parent, place.known - 1
        ids = self._renderer.render(place.messages, place.tools)
        return PreparedPrompt(
            parent_id=parent.call.call_id if parent else None,
            continues=False,
            new_prompt_ids=ids,
            prompt_ids=ids,
            prompt_digest=TokenDigest(ids).value(),
            new_messages=tuple(place.messages[echo:] if parent else place.messages),
            break_reason=(place.edited or "bridge_refused") if parent else place.why_new_root,
            tolerant=(*place.tolerant, *tolerances(parent.call.response, place.messages[echo])) if parent else (),
        )

    def add(self, call: Call, *, attachable: bool = True) -> None:
        """Stores a call so that later requests can attach to it. An aborted one has no end to attach to, and a
        prompt that was no conversation is not `attachable`."""
        parent = self._nodes[call.parent_id] if call.parent_id else None
        if parent:
            # The echo counts as the parent's reply, which the parent's end has in it already.
            paths = _paths(parent.end, call.new_messages[1:])
        else:
            paths = _paths(_tools_path(call.tools or ()), call.new_messages)
        if attachable:
            self._seen.update(paths)
        start = parent.digest if parent and call.continues else TokenDigest()
        node = _Node(
            call=call,
            messages=len(call.new_messages) + (parent.messages if parent else 0),
            end=extend_path(paths[-1], message_key(call.response)),
            items=(*parent.items[: call.shared_items], *call.new_items) if parent else call.new_items,
            digest=start.extended(call.new_prompt_ids).extended(call.completion_ids),
        )
        self._nodes[call.call_id] = node
        if attachable and call.finish_reason != "aborted":
            self._ends.setdefault(node.end, []).append(call.call_id)

    def shared_items(self, parent_id: str | None, items: Sequence[bytes]) -> int:
        """How many items a raw request begins with that its parent's began with too."""
        return _common(self._nodes[parent_id].items, tuple(items)) if parent_id else 0

    def has_received(self, call_id: str) -> bool:
        return call_id in self._received

    def mark_received(self, call_id: str) -> None:
        """The harness has the reply, so it may be the one it goes on from."""
        self._received.add(call_id)

    def _is_told_alike(self, node: _Node, messages: Sequence[Message]) -> bool:
        """Whether the request's own assistant messages, those that are no echo of a stored reply, reason as they
        did when the call was made. Only where a reply was sampled here may its reasoning be missing."""
        while True:
            call = node.call
            parent = self._nodes[call.parent_id] if call.parent_id else None
            told = call.new_messages[1:] if parent else call.new_messages
            again = messages[node.messages - len(told) : node.messages]
            for before, now in zip(told, again, strict=True):
                if before.reasoning != now.reasoning:
                    return False
            if parent is None:
                return True
            node = parent

    def _choose(self, nodes: list[_Node], echo: Message) -> _Node:
        """Of calls with the same visible reply the one whose reasoning the harness sent back, then the one whose
        tool calls it names by their ids, then one that it has received, then the latest."""

        def likeness(node: _Node) -> tuple[bool, bool, bool]:
            reply = node.call.response
            named = [c.call_id for c in reply.tool_calls] == [c.call_id for c in echo.tool_calls]
            return reply.reasoning == echo.reasoning, named, node.call.call_id in self._received

        return max(reversed(nodes), key=likeness)

    def _paths_of(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> list[bytes]:
        known_messages, known = self._last
        paths = [_tools_path(tools)]
        if known[:1] == paths:
            paths = known[: _common(known_messages, tuple(messages)) + 1]
        paths += _paths(paths[-1], messages[len(paths) - 1 :])[1:]
        self._last = (tuple(messages), paths)
        return paths

    def _why_new_root(self, paths: list[bytes]) -> str:
        if not self._nodes:
            return ""
        if paths[0] not in self._seen:
            return "tools_changed"
        if len(paths) > 1 and paths[1] not in self._seen:
            return "system_changed"
        return "resampled" if paths[-1] in self._seen else "history_rewritten"

    def _prompt_of(self, call: Call) -> TokenIds:
        parts: list[TokenIds] = [call.new_prompt_ids]
        while call.continues and call.parent_id:
            call = self._nodes[call.parent_id].call
            parts += [call.completion_ids, call.new_prompt_ids]
        whole = token_ids()
        for part in reversed(parts):
            whole.extend(part)
        return whole


def _says_nothing(message: Message) -> bool:
    return message.role == "assistant" and not (message.content or message.reasoning or message.tool_calls)


def _tools_path(tools: tuple[Tool, ...]) -> bytes:
    return extend_path(b"", tools_key(tools))


def _paths(start: bytes, messages: Sequence[Message]) -> list[bytes]:
    """Digests of a path as it grows from `start`, one message at a time."""
    paths = [start]
    for message in messages:
        paths.append(extend_path(paths[-1], message_key(message)))
    return paths


def _common(known: tuple[T, ...], items: tuple[T, ...]) -> int:
    """How many items two sequences begin with that are the same."""
    if items[: len(known)] == known:  # nearly always, and one comparison
        return len(known)
    pairs = enumerate(zip(known, items, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(known), len(items)))
