"""The forest of one session's calls: where a request attaches, and where none was like it.

A request attaches to the deepest stored call whose messages begin it. Which tokens it then goes on with is
decided elsewhere: `prompting.py` where the gateway lays prompts out, `drift.py` where the engine does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, takewhile

import msgspec

from polar.tokens.digest import TokenDigest
from polar.tokens.matching import Declared, Matcher, extend_path
from polar.tokens.recent_paths import RecentPaths, characters_of, common_items, is_empty_turn
from polar.types import Call, Matching, Message, TokenIds, Tool, token_ids

EMPTY_TURN = ("empty_turn",)


class StoredCall(msgspec.Struct, frozen=True):
    """A stored call."""

    call: Call
    messages: int
    """How many messages its request had."""
    end: bytes
    """Path of its request and its reply."""
    digest: TokenDigest
    """Of prompt and completion."""
    declared: Declared
    has_assistant: bool
    """Whether its request brought an assistant message that is no echo of a stored reply."""
    nearest_assistant: StoredCall | None
    """The nearest call before it whose request did."""


class Attachment(msgspec.Struct, frozen=True):
    """Where a request attaches."""

    messages: Sequence[Message]
    tools: tuple[Tool, ...]
    parent: StoredCall | None
    known: int = 0
    """How many messages the parent's request and its reply make up."""
    why_new_root: str = ""
    overlooked: tuple[str, ...] = ()
    """In which ways the history differs from the parent's, which was taken all the same."""

    @property
    def new(self) -> tuple[Message, ...]:
        """What the parent has not seen."""
        return tuple(self.messages[self.known :])

    @property
    def new_characters(self) -> int:
        """About what there is to render."""
        return sum(map(characters_of, self.messages[self.known :]))

    @property
    def depth(self) -> int:
        """How much of what was said here it goes on from."""
        return self.parent.messages if self.parent else 0

    @property
    def echo(self) -> Message:
        """The parent's reply as the harness sends it back."""
        return self.messages[self.known - 1]

    @property
    def since_parent(self) -> tuple[Message, ...]:
        """What is new against the parent's request: the echo first. Everything, where there is no parent."""
        return tuple(self.messages[self.known - 1 :] if self.parent else self.messages)

    @property
    def edited(self) -> str:
        return "history_edited" if any(message.role == "assistant" for message in self.new) else ""


class CallForest:
    """Not thread-safe: one request is prepared or added at a time."""

    def __init__(self, matching: Matching | None = None) -> None:
        """`matching`: what the harness does to its history."""
        self._matcher = Matcher(matching)
        self._nodes: dict[str, StoredCall] = {}
        self._ends: dict[bytes, list[str]] = {}
        """Path of a call's request and its reply, to the calls that end there, oldest first."""
        self._received: set[str] = set()
        self._seen: set[bytes] = set()
        """Paths of every request, message by message, to tell why one does not attach."""
        self._recent = RecentPaths()
        self._declared: tuple[tuple[Tool, ...], Declared] | None = None
        """The tools of the request before."""
        self._last_items: tuple[str, tuple[bytes, ...]] = ("", ())
        """The latest call and the items of its raw request. Kept for one call only: kept for each, they are the
        square of the session."""

    def find(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> Attachment:
        place = self._find(messages, tools)
        if not self._recent.newest_has_empty_turns:
            return place
        # After a broken reply harnesses leave an empty turn in their history, which nobody said.
        without = self._find([message for message in messages if not is_empty_turn(message)], tools)
        if without.depth <= place.depth:
            return place
        return msgspec.structs.replace(without, overlooked=(*EMPTY_TURN, *without.overlooked))

    def _find(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> Attachment:
        paths = self._paths_of(messages, tools)
        for count in range(len(messages) - 1, 0, -1):
            nodes = [self._nodes[call_id] for call_id in self._ends.get(paths[count], ())]
            candidates = [node for node in nodes if self._is_told_alike(node, messages)]
            if candidates:
                parent = self._choose(candidates, messages)
                return Attachment(messages, tools, parent, count, overlooked=self._overlooked(parent, messages))
        return Attachment(messages, tools, None, why_new_root=self._why_new_root(paths))

    def add(self, call: Call, *, attachable: bool = True) -> None:
        """Stores a call so that later requests can attach to it. An aborted one has no end to attach to, and a
        prompt that was no conversation is not `attachable`."""
        parent = self._nodes[call.parent_id] if call.parent_id else None
        if parent:
            # The echo counts as the parent's reply, which the parent's end has in it already.
            declared, start, told = parent.declared, parent.end, call.new_messages[1:]
        else:
            declared = self._matcher.declared(call.tools or ())
            start, told = declared.path, call.new_messages
        paths = self._paths(start, told, declared)
        if attachable:
            self._seen.update(paths)
        digest = parent.digest if parent and call.continues else TokenDigest()
        node = StoredCall(
            call=call,
            messages=len(call.new_messages) + (parent.messages if parent else 0),
            end=extend_path(paths[-1], self._matcher.key(call.response, declared)),
            digest=digest.extended(call.new_prompt_ids).extended(call.completion_ids),
            declared=declared,
            has_assistant=any(message.role == "assistant" for message in told),
            nearest_assistant=(parent if parent.has_assistant else parent.nearest_assistant) if parent else None,
        )
        self._nodes[call.call_id] = node
        shared = self._items_of(parent)[: call.shared_items] if parent else ()
        self._last_items = (call.call_id, (*shared, *call.new_items))
        if attachable and call.finish_reason != "aborted":
            self._ends.setdefault(node.end, []).append(call.call_id)

    def prompt_ids(self, node: StoredCall) -> TokenIds:
        """The whole prompt of a call, put together."""
        call, parts = node.call, [node.call.new_prompt_ids]
        while call.continues and call.parent_id:
            call = self._nodes[call.parent_id].call
            parts += [call.completion_ids, call.new_prompt_ids]
        whole = token_ids()
        for part in reversed(parts):
            whole.extend(part)
        return whole

    def shared_items(self, parent_id: str | None, items: Sequence[bytes]) -> int:
        """How many items a raw request begins with that its parent's began with too."""
        return common_items(self._items_of(self._nodes[parent_id]), tuple(items)) if parent_id else 0

    def _items_of(self, node: StoredCall) -> tuple[bytes, ...]:
        """The digests of a call's whole raw request, put together from what each call had that was new."""
        if self._last_items[0] == node.call.call_id:
            return self._last_items[1]
        parts: list[tuple[bytes, ...]] = []
        call, count = node.call, node.call.shared_items + len(node.call.new_items)
        while True:
            parts.append(call.new_items[: max(0, count - call.shared_items)])
            count = min(count, call.shared_items)
            if not count or call.parent_id is None:
                return tuple(chain.from_iterable(reversed(parts)))
            call = self._nodes[call.parent_id].call

    def has_received(self, call_id: str) -> bool:
        return call_id in self._received

    def mark_received(self, call_id: str) -> None:
        """The harness has the reply, so it may be the one it goes on from. Safe beside a `find` in a thread."""
        self._received.add(call_id)

    def _is_told_alike(self, node: StoredCall, messages: Sequence[Message]) -> bool:
        """Whether the request's own assistant messages, those that are no echo of a stored reply, reason as they
        did when the call was made. Only where a reply was sampled here may its reasoning be missing."""
        teller = node if node.has_assistant else node.nearest_assistant
        while teller is not None:
            if any(before.reasoning != now.reasoning for before, now in _told_by(teller, messages)):
                return False
            teller = teller.nearest_assistant
        return True

    def _overlooked(self, node: StoredCall, messages: Sequence[Message]) -> tuple[str, ...]:
        told = [pair for pair in self._told(node, messages) if pair[0] != pair[1]]
        echo = (node.call.response, messages[node.messages])
        found = [name for pair in (*reversed(told), echo) for name in self._matcher.tolerances(*pair)]
        return tuple(dict.fromkeys(found))

    def _told(self, node: StoredCall, messages: Sequence[Message]) -> Iterable[tuple[Message, Message]]:
        """What the harness said in a stored call and those before it, beside what it says there now. The echoes of
        replies are left out."""
        while True:
            yield from _told_by(node, messages)
            if node.call.parent_id is None:
                return
            node = self._nodes[node.call.parent_id]

    def _choose(self, nodes: list[StoredCall], messages: Sequence[Message]) -> StoredCall:
        """Of calls with the same visible reply the one whose tool calls, and those of the calls before it, the
        harness names by their ids, then the one whose reasoning it sent back, then one that it has received, then
        the one with the least to overlook, then the latest. What a harness leaves out says nothing."""

        def likeness(node: StoredCall) -> tuple[int, bool, bool, int]:
            reply, echo = node.call.response, messages[node.messages]
            thought = bool(echo.reasoning) and reply.reasoning == echo.reasoning
            received = node.call.call_id in self._received
            return self._named(node, messages), thought, received, -len(self._overlooked(node, messages))

        return nodes[0] if len(nodes) == 1 else max(reversed(nodes), key=likeness)

    def _named(self, node: StoredCall, messages: Sequence[Message]) -> int:
        """How many tool calls of a stored call, and of those it follows, the request has under the same ids: in
        the echo of the reply, or in the results behind it. Equal branches differ in nothing else."""
        found = 0
        while True:
            own = {call.call_id for call in node.call.response.tool_calls if call.call_id}
            echo = {call.call_id for call in messages[node.messages].tool_calls}
            results = takewhile(lambda each: each.role == "tool", messages[node.messages + 1 :])
            found += len(own & (echo | {result.tool_call_id for result in results})) if own else 0
            if node.call.parent_id is None:
                return found
            node = self._nodes[node.call.parent_id]

    def new_characters(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> int:
        """How long a request is without what the session's recent ones begin with: about what `find` works on."""
        _, known = self._recent.longest(tuple(messages), self._declare(tools).path)
        return sum(map(characters_of, messages[known:]))

    def _declare(self, tools: tuple[Tool, ...]) -> Declared:
        if self._declared is None or self._declared[0] != tools:
            self._declared = (tools, self._matcher.declared(tools))
        return self._declared[1]

    def _paths_of(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> list[bytes]:
        declared, told = self._declare(tools), tuple(messages)
        before, known = self._recent.longest(told, declared.path)
        paths = before.paths[: known + 1] if before else [declared.path]
        paths += self._paths(paths[-1], told[known:], declared)[1:]
        self._recent.keep(told, paths, before, known)
        return paths

    def _paths(self, start: bytes, messages: Sequence[Message], declared: Declared) -> list[bytes]:
        """Digests of a path as it grows from `start`, one message at a time."""
        paths = [start]
        for message in messages:
            paths.append(extend_path(paths[-1], self._matcher.key(message, declared)))
        return paths

    def _why_new_root(self, paths: list[bytes]) -> str:
        if not self._nodes:
            return ""
        if paths[0] not in self._seen:
            return "tools_changed"
        if len(paths) > 1 and paths[1] not in self._seen:
            return "system_changed"
        return "resampled" if paths[-1] in self._seen else "history_rewritten"


def _told_by(node: StoredCall, messages: Sequence[Message]) -> Iterable[tuple[Message, Message]]:
    """The same of one call alone."""
    call = node.call
    told = call.new_messages[1:] if call.parent_id else call.new_messages
    return zip(told, messages[node.messages - len(told) : node.messages], strict=True)
