"""The forest of a session's calls: where a request attaches, and the prompt that follows from it.

A request attaches to the deepest stored call whose messages it begins with. In token mode that call's tokens are
kept and only the new messages are rendered, so *prompt starts with parent's prompt + completion* holds by
construction. Without such a call, or where the renderer cannot bridge, the whole request is rendered on a new
branch and the reason is kept. In chat mode the engine renders, and `drift.py` compares its prompt with the stored
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, takewhile

import msgspec

from polar.tokens.base import Renderer
from polar.tokens.matching import (
    Matcher,
    PathIndex,
    RequestPaths,
    ToolDeclarations,
    characters_of,
    extend_path,
    is_empty_turn,
)
from polar.tokens.sequences import TokenDigest, digest_of, first_difference, joined_prompt
from polar.types import Call, Drift, Matching, Message, TokenIds, Tool

EMPTY_TURN = ("empty_turn",)


class StoredCall(msgspec.Struct, frozen=True):
    call: Call
    messages: int
    """Number of messages in its request."""
    end: bytes
    """Path of its request and its reply."""
    digest: TokenDigest
    """Of prompt and completion."""
    declarations: ToolDeclarations
    has_assistant: bool
    """Its request added an assistant message that does not echo a stored reply."""
    nearest_assistant: StoredCall | None
    """The nearest ancestor with `has_assistant`."""


class Attachment(msgspec.Struct, frozen=True):
    """Where a request attaches."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    parent: StoredCall | None
    matched: int = 0
    """Number of messages in the parent's request and reply."""
    root_reason: str = ""
    """Why there is no parent."""
    tolerances: tuple[str, ...] = ()
    """How the history differs from the parent's although it matches."""

    @property
    def new_messages(self) -> tuple[Message, ...]:
        """Messages after the parent's reply."""
        return self.messages[self.matched :]

    @property
    def new_characters(self) -> int:
        """Roughly how much there is to render."""
        return sum(map(characters_of, self.new_messages))

    @property
    def depth(self) -> int:
        return self.parent.messages if self.parent else 0

    @property
    def since_parent(self) -> tuple[Message, ...]:
        """Messages after the parent's request: the echo of its reply first. All, if there is no parent."""
        return self.messages[self.matched - 1 :] if self.parent else self.messages

    @property
    def edit_reason(self) -> str:
        """Set if the harness put assistant turns behind the parent that were not sampled here."""
        return "history_edited" if any(message.role == "assistant" for message in self.new_messages) else ""


class Prompt(msgspec.Struct, frozen=True):
    """A request as tokens, and its relation to the call it attaches to."""

    parent_id: str | None
    continues: bool
    """It begins with the parent's prompt and completion."""
    new_prompt_ids: TokenIds
    prompt_ids: TokenIds
    """The whole prompt, as the engine gets it."""
    prompt_digest: bytes
    new_messages: tuple[Message, ...]
    break_reason: str = ""
    tolerant: tuple[str, ...] = ()
    drift: Drift | None = None


class CallForest:
    """Not thread-safe: find or add one request at a time."""

    def __init__(self, matching: Matching | None = None) -> None:
        """`matching`: how the harness is known to change its history."""
        self._matcher = Matcher(matching)
        self._paths = PathIndex(self._matcher)
        self._calls: dict[str, StoredCall] = {}
        self._ends: dict[bytes, list[str]] = {}
        """Path of a request and its reply, to the calls that end there, oldest first."""
        self._received: set[str] = set()
        self._seen: set[bytes] = set()
        """Paths of all requests after each message, to explain why a request does not attach."""
        self._last_items: tuple[str, tuple[bytes, ...]] = ("", ())
        """The latest call and all items of its raw request. Kept for one call only: for all of them the size would
        be quadratic in the session."""

    def find(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> Attachment:
        request = self._paths.of(messages, tools)
        attachment = self._find(request, tools)
        if not request.empty_turns[-1]:
            return attachment
        spoken = [message for message in messages if not is_empty_turn(message)]
        without = self._find(self._paths.of(spoken, tools), tools)
        if without.depth <= attachment.depth:
            return attachment
        return msgspec.structs.replace(without, tolerances=(*EMPTY_TURN, *without.tolerances))

    def _find(self, request: RequestPaths, tools: tuple[Tool, ...]) -> Attachment:
        messages, paths = request.messages, request.paths
        for count in range(len(messages) - 1, 0, -1):
            ending = [self._calls[call_id] for call_id in self._ends.get(paths[count], ())]
            candidates = [stored for stored in ending if _same_reasoning(stored, messages)]
            if candidates:
                parent = self._choose(candidates, messages)
                return Attachment(messages, tools, parent, count, tolerances=self._tolerances(parent, messages))
        return Attachment(messages, tools, None, root_reason=self._root_reason(paths))

    def add(self, call: Call, *, attachable: bool = True) -> None:
        """Stores a call so that later requests can attach to it, unless it was aborted or is not `attachable`,
        because its prompt was no conversation."""
        parent = self._calls[call.parent_id] if call.parent_id else None
        if parent:
            declarations, start = parent.declarations, parent.end
        else:
            declarations = self._matcher.declarations(call.tools or ())
            start = declarations.path
        own_messages = _own_messages(call)
        paths = self._paths.extend(start, own_messages, declarations)
        if attachable:
            self._seen.update(paths)
        digest = parent.digest if parent and call.continues else TokenDigest()
        stored = StoredCall(
            call=call,
            messages=len(call.new_messages) + (parent.messages if parent else 0),
            end=extend_path(paths[-1], self._matcher.key(call.response, declarations)),
            digest=digest.extended(call.new_prompt_ids).extended(call.completion_ids),
            declarations=declarations,
            has_assistant=any(message.role == "assistant" for message in own_messages),
            nearest_assistant=(parent if parent.has_assistant else parent.nearest_assistant) if parent else None,
        )
        self._calls[call.call_id] = stored
        shared = self._items_of(parent)[: call.shared_items] if parent else ()
        self._last_items = (call.call_id, (*shared, *call.new_items))
        if attachable and call.finish_reason != "aborted":
            self._ends.setdefault(stored.end, []).append(call.call_id)

    def prompt_ids(self, stored: StoredCall) -> TokenIds:
        """The whole prompt of a call, as a new array."""
        return joined_prompt(self._continued(stored.call))

    def _continued(self, call: Call) -> Iterator[Call]:
        yield call
        while call.continues and call.parent_id:
            call = self._calls[call.parent_id].call
            yield call

    def shared_items(self, parent_id: str | None, items: Sequence[bytes]) -> int:
        """How many items a raw request has in common with the beginning of its parent's."""
        return first_difference(self._items_of(self._calls[parent_id]), tuple(items)) if parent_id else 0

    def _items_of(self, stored: StoredCall) -> tuple[bytes, ...]:
        """The digests of a call's whole raw request, joined from what each call added."""
        if self._last_items[0] == stored.call.call_id:
            return self._last_items[1]
        parts: list[tuple[bytes, ...]] = []
        call, count = stored.call, stored.call.shared_items + len(stored.call.new_items)
        while True:
            parts.append(call.new_items[: max(0, count - call.shared_items)])
            count = min(count, call.shared_items)
            if not count or call.parent_id is None:
                return tuple(chain.from_iterable(reversed(parts)))
            call = self._calls[call.parent_id].call

    def has_received(self, call_id: str) -> bool:
        return call_id in self._received

    def mark_received(self, call_id: str) -> None:
        """The harness has the reply, so it may continue from it. Safe while `find` runs in a thread."""
        self._received.add(call_id)

    def new_characters(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> int:
        """Roughly how much `find` has to process: the request without what recent ones begin with."""
        return self._paths.new_characters(messages, tools)

    def _ancestry(self, stored: StoredCall) -> Iterator[StoredCall]:
        """The call and all its ancestors."""
        yield stored
        while stored.call.parent_id is not None:
            stored = self._calls[stored.call.parent_id]
            yield stored

    def _tolerances(self, stored: StoredCall, messages: Sequence[Message]) -> tuple[str, ...]:
        """Needed for a request to match a stored call: in the harness's messages, then in the echo of the
        reply."""
        ancestry = self._ancestry(stored)
        changed = [pair for each in ancestry for pair in _sent_pairs(each, messages) if pair[0] != pair[1]]
        echo = (stored.call.response, messages[stored.messages])
        found = [name for pair in (*reversed(changed), echo) for name in self._matcher.tolerances(*pair)]
        return tuple(dict.fromkeys(found))

    def _choose(self, candidates: list[StoredCall], messages: Sequence[Message]) -> StoredCall:
        """Of calls with the same visible reply: the one whose tool-call ids (its own and its ancestors') the
        request uses most, then the one whose reasoning came back, then one that was received, then the one with
        the fewest tolerances, then the latest. What a harness leaves out decides nothing."""

        def likeness(stored: StoredCall) -> tuple[int, bool, bool, int]:
            reply, echo = stored.call.response, messages[stored.messages]
            reasoned = bool(echo.reasoning) and reply.reasoning == echo.reasoning
            received = stored.call.call_id in self._received
            return self._used_ids(stored, messages), reasoned, received, -len(self._tolerances(stored, messages))

        return candidates[0] if len(candidates) == 1 else max(reversed(candidates), key=likeness)

    def _used_ids(self, stored: StoredCall, messages: Sequence[Message]) -> int:
        """How many tool calls of a stored call and its ancestors the request names by the same ids: in the echo of
        the reply, or in the results behind it. Equal branches differ in nothing else."""
        found = 0
        for each in self._ancestry(stored):
            own = {call.call_id for call in each.call.response.tool_calls if call.call_id}
            if own:
                echo = {call.call_id for call in messages[each.messages].tool_calls}
                results = takewhile(lambda message: message.role == "tool", messages[each.messages + 1 :])
                found += len(own & (echo | {result.tool_call_id for result in results}))
        return found

    def _root_reason(self, paths: list[bytes]) -> str:
        if not self._calls:
            return ""
        if paths[0] not in self._seen:
            return "tools_changed"
        if len(paths) > 1 and paths[1] not in self._seen:
            return "system_changed"
        return "resampled" if paths[-1] in self._seen else "history_rewritten"


def _same_reasoning(stored: StoredCall, messages: Sequence[Message]) -> bool:
    """Whether assistant messages that the harness wrote itself have the reasoning they had when the call was made.
    Only the echo of a reply sampled here may lack its reasoning."""
    writer = stored if stored.has_assistant else stored.nearest_assistant
    while writer is not None:
        if any(before.reasoning != now.reasoning for before, now in _sent_pairs(writer, messages)):
            return False
        writer = writer.nearest_assistant
    return True


def _own_messages(call: Call) -> tuple[Message, ...]:
    """The messages that the harness wrote itself. The first new message of a call with a parent echoes a reply."""
    return call.new_messages[1:] if call.parent_id else call.new_messages


def _sent_pairs(stored: StoredCall, messages: Sequence[Message]) -> Iterator[tuple[Message, Message]]:
    """The harness's own messages of a stored call, each with the message that a request has in its place."""
    own = _own_messages(stored.call)
    return zip(own, messages[stored.messages - len(own) : stored.messages], strict=True)


class PromptBuilder:
    """Prompts for the requests of one session in token mode."""

    def __init__(self, forest: CallForest, renderer: Renderer) -> None:
        self._forest = forest
        self._renderer = renderer

    def prepare(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> Prompt:
        attachment = self._forest.find(messages, tools)
        return self.bridge(attachment) or self.render(attachment)

    def bridge(self, attachment: Attachment) -> Prompt | None:
        """The parent's exact tokens and what is new. None without a parent, or if the renderer cannot append
        exactly."""
        parent = attachment.parent
        if parent is None:
            return None
        prompt_ids, completion_ids = self._forest.prompt_ids(parent), parent.call.completion_ids
        bridge = self._renderer.bridge(prompt_ids, completion_ids, attachment.new_messages, attachment.tools)
        if bridge is None:
            return None
        prompt_ids.extend(completion_ids)  # in place: a long prompt is not copied twice more
        prompt_ids.extend(bridge)
        return continued(attachment, prompt_ids, len(bridge))

    def render(self, attachment: Attachment) -> Prompt:
        """The whole request, on a new branch."""
        return branched(attachment, self._renderer.render(attachment.messages, attachment.tools))


def continued(attachment: Attachment, prompt_ids: TokenIds, new_tokens: int) -> Prompt:
    """A prompt that begins with the parent's prompt and completion, followed by `new_tokens`."""
    assert attachment.parent is not None
    new_prompt_ids = prompt_ids[len(prompt_ids) - new_tokens :]
    return Prompt(
        parent_id=attachment.parent.call.call_id,
        continues=True,
        new_prompt_ids=new_prompt_ids,
        prompt_ids=prompt_ids,
        prompt_digest=attachment.parent.digest.extended(new_prompt_ids).value(),
        new_messages=attachment.since_parent,
        break_reason=attachment.edit_reason,
        tolerant=attachment.tolerances,
    )


def branched(attachment: Attachment, prompt_ids: TokenIds, drift: Drift | None = None) -> Prompt:
    """A prompt that does not continue stored tokens."""
    parent = attachment.parent
    reason = attachment.edit_reason or (drift.kind if drift else "bridge_refused")
    return Prompt(
        parent_id=parent.call.call_id if parent else None,
        continues=False,
        new_prompt_ids=prompt_ids,
        prompt_ids=prompt_ids,
        prompt_digest=digest_of(prompt_ids),
        new_messages=attachment.since_parent,
        break_reason=reason if parent else attachment.root_reason,
        tolerant=attachment.tolerances,
        drift=drift,
    )
