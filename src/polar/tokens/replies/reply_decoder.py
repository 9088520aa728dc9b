"""Decodes a reply while it is sampled: ids in, deltas out, up to a stop text.

The call keeps the ids that spell a stop text, as all sampled ids; the harness sees only what comes before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from polar.tokens.base import Renderer, ReplyReader
from polar.tokens.replies.reply_text import overlap
from polar.types import Delta, Message, TokenIds, token_ids

UNFINISHED = "\ufffd"
"""A decoded text ends with this if its last token ends inside a character."""
LONGEST_CHARACTER_TOKENS = 64
"""At most this many ids wait for the end of a character."""


class ReplyDecoder:
    """Decodes one reply. If the family can only parse whole replies, all deltas come at the end."""

    def __init__(
        self,
        renderer: Renderer,
        prompt_ids: TokenIds,
        call_id: str,
        stop: tuple[str, ...],
        *,
        raw: bool,
        calls: bool = True,
    ) -> None:
        """`raw`: the prompt was no conversation. `calls`: tools were offered; otherwise what looks like a call is
        text."""
        self._renderer = renderer
        self._prompt_ids = prompt_ids
        self._calls = calls
        reader = RawReader(renderer) if raw else renderer.reader(prompt_ids, calls=calls)
        self._reader: ReplyReader | None = reader
        self._unread = token_ids()
        self._ids = ToolCallIds(call_id)
        self._stop = StopSearch(stop)

    @property
    def stop_sequence(self) -> str:
        """The stop text that ended the reply, if any."""
        return self._stop.found

    @property
    def reasoning_tokens(self) -> int:
        return self._reader.reasoning_tokens if self._reader else 0

    def feed(self, ids: TokenIds) -> tuple[int, list[Delta]]:
        """How many of the ids belong to the reply, and their deltas. Fewer than given: a stop text ended it."""
        if self._reader is None:
            self._unread.extend(ids)
            return len(ids), []
        if not self._stop.texts:
            return len(ids), self._ids.assign(self._reader.feed(ids))
        deltas: list[Delta] = []
        for position, token_id in enumerate(ids):  # one at a time, to know which of them completes a stop text
            deltas += self._ids.assign(self._stop.cut(self._reader.feed(token_ids([token_id]))))
            if self._stop.found:
                return position + 1, deltas
        return len(ids), deltas

    def finish(self) -> list[Delta]:
        if self._stop.found:
            return []
        if self._reader is not None:
            rest = self._reader.finish()
        else:
            rest = deltas_of(self._renderer.parse(self._prompt_ids, self._unread, calls=self._calls))
        return self._ids.assign([*self._stop.cut(rest), *self._stop.rest()])


class ToolCallIds:
    """Gives the tool calls of one reply ids, with only the characters that every provider allows."""

    def __init__(self, call_id: str) -> None:
        self._call_id = call_id.replace(".", "_")
        self._calls = 0

    def assign(self, deltas: Iterable[Delta]) -> list[Delta]:
        assigned: list[Delta] = []
        for delta in deltas:
            if delta.tool_call is not None:
                call_id = f"call_{self._call_id}_{self._calls}"
                self._calls += 1
                delta = Delta(tool_call=msgspec.structs.replace(delta.tool_call, call_id=call_id))
            assigned.append(delta)
        return assigned


class RawReader:
    """Reads the reply to a prompt that was no conversation: text only."""

    reasoning_tokens = 0

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._pending = token_ids()

    def feed(self, ids: TokenIds) -> Sequence[Delta]:
        self._pending.extend(token_id for token_id in ids if token_id not in self._renderer.stop_ids)
        text = self._renderer.decode(self._pending)
        if text.endswith(UNFINISHED) and len(self._pending) < LONGEST_CHARACTER_TOKENS:
            return []
        self._pending = token_ids()
        return [Delta(content=text)] if text else []

    def finish(self) -> Sequence[Delta]:
        text = self._renderer.decode(self._pending)
        return [Delta(content=text)] if text else []


class StopSearch:
    """Searches growing content for stop texts, and holds back what may be the beginning of one."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.texts = texts
        self.found = ""
        self._held = ""

    def cut(self, deltas: Iterable[Delta]) -> list[Delta]:
        if not self.texts:
            return list(deltas)
        before: list[Delta] = []
        for delta in deltas:
            if self.found:
                break
            if delta.content:
                before += self._search(delta.content)
            else:  # a stop text does not span a tool call
                before += [*self.rest(), delta]
        return before

    def rest(self) -> list[Delta]:
        held, self._held = self._held, ""
        return [Delta(content=held)] if held else []

    def _search(self, content: str) -> list[Delta]:
        whole = self._held + content
        found = min(((whole.find(text), text) for text in self.texts if text in whole), default=None)
        if found is not None:
            end, self.found = found
            self._held = ""
        else:
            end = len(whole) - max(overlap(whole, text) for text in self.texts)
            self._held = whole[end:]
        return [Delta(content=whole[:end])] if end else []


def deltas_of(message: Message) -> list[Delta]:
    """A whole message as deltas."""
    deltas = [Delta(reasoning=message.reasoning)] if message.reasoning else []
    deltas += [Delta(content=message.content)] if message.content else []
    return [*deltas, *(Delta(tool_call=call) for call in message.tool_calls)]
