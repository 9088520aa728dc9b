"""What a growing reply says: sampled ids in, deltas out, ended at a stop text.

The ids that spell a stop text are kept, as everything sampled is; the harness sees what comes before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from polar.tokens.base import Renderer, ReplyReader
from polar.types import Delta, Message, TokenIds, token_ids

UNFINISHED = "\ufffd"
"""What a text ends with whose last token ends inside a character."""
LONGEST_CHARACTER_TOKENS = 64
"""So many ids wait for the end of a character; a model that writes none at all is not waited for longer."""


class Speech:
    """Reads one reply. Where the family can be read only as a whole, all of it is said at the end."""

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
        """`calls`: whether the model may call tools. Where none is offered, what looks like a call is text."""
        self._renderer = renderer
        self._prompt_ids = prompt_ids
        self._calls = calls
        reader = RawReader(renderer) if raw else renderer.reader(prompt_ids, calls=calls)
        self._reader: ReplyReader | None = reader
        self._unread = token_ids()
        self._named = NamedCalls(call_id).named
        self._stop = StopSearch(stop)

    @property
    def stop_sequence(self) -> str:
        """The stop text that ended the reply, if one did."""
        return self._stop.found

    @property
    def reasoning_tokens(self) -> int:
        return self._reader.reasoning_tokens if self._reader else 0

    def feed(self, ids: TokenIds) -> tuple[int, list[Delta]]:
        """How many of the ids belong to the reply, and what they say. Fewer than given: a stop text ended it."""
        if self._reader is None:
            self._unread.extend(ids)
            return len(ids), []
        if not self._stop.texts:
            return len(ids), self._named(self._reader.feed(ids))
        said: list[Delta] = []
        for position, token_id in enumerate(ids):  # one by one, to know which of them completes a stop text
            said += self._named(self._stop.cut(self._reader.feed(token_ids([token_id]))))
            if self._stop.found:
                return position + 1, said
        return len(ids), said

    def finish(self) -> list[Delta]:
        if self._stop.found:
            return []
        if self._reader is not None:
            rest = self._reader.finish()
        else:
            rest = deltas_of(self._renderer.parse(self._prompt_ids, self._unread, calls=self._calls))
        return self._named([*self._stop.cut(rest), *self._stop.rest()])


class NamedCalls:
    """Gives the tool calls of one reply the ids by which the harness answers them, of letters that every provider
    allows there."""

    def __init__(self, call_id: str) -> None:
        self._call_id = call_id.replace(".", "_")
        self._calls = 0

    def named(self, deltas: Iterable[Delta]) -> list[Delta]:
        named: list[Delta] = []
        for delta in deltas:
            if delta.tool_call is not None:
                call_id = f"call_{self._call_id}_{self._calls}"
                self._calls += 1
                delta = Delta(tool_call=msgspec.structs.replace(delta.tool_call, call_id=call_id))
            named.append(delta)
        return named


class RawReader:
    """Reads a reply to a prompt that was no conversation: text, and nothing else."""

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
    """Looks for stop texts in the content as it grows, and holds back what may be the beginning of one."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.texts = texts
        self.found = ""
        self._held = ""

    def cut(self, deltas: Iterable[Delta]) -> list[Delta]:
        if not self.texts:
            return list(deltas)
        said: list[Delta] = []
        for delta in deltas:
            if self.found:
                break
            if delta.content:
                said += self._search(delta.content)
            else:  # a stop text does not go on behind a tool call
                said += [*self.rest(), delta]
        return said

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
            end = len(whole) - max(_overlap(whole, text) for text in self.texts)
            self._held = whole[end:]
        return [Delta(content=whole[:end])] if end else []


def _overlap(whole: str, text: str) -> int:
    """How many of the last characters of `whole` may be the beginning of `text`."""
    longest = min(len(whole), len(text) - 1)
    return next((size for size in range(longest, 0, -1) if whole.endswith(text[:size])), 0)


def deltas_of(message: Message) -> list[Delta]:
    """A whole message as it would have been said."""
    said = [Delta(reasoning=message.reasoning)] if message.reasoning else []
    said += [Delta(content=message.content)] if message.content else []
    return [*said, *(Delta(tool_call=call) for call in message.tool_calls)]
