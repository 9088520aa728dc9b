"""Tool calls in plain text: reads replies whose tags are text, in whatever way the tokens split them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polar.tokens.replies.call_block import CLOSE, OPEN
from polar.tokens.replies.reply_text import Body, Characters, message_of
from polar.types import Delta, Message, TokenIds


class TextTags:
    """Finds the tags of tool calls in text that comes in pieces."""

    def __init__(self, *, calls: bool = True) -> None:
        self._body = Body(to_the_letter=True, calls=calls)
        self._held = ""
        """The end of the text, as far as it may begin the next tag."""

    def feed(self, text: str) -> Sequence[Delta]:
        text = self._held + text
        while self._tag in text:
            before, _, text = text.partition(self._tag)
            self._body.text(before)
            self._body.close_block() if self._body.in_block else self._body.open_block()
        certain = len(text) - _overlap(text, self._tag)
        self._body.text(text[:certain])
        self._held = text[certain:]
        return self._body.taken()

    def finish(self) -> Sequence[Delta]:
        self._body.text(self._held)
        self._held = ""
        self._body.finish()
        return self._body.taken()

    @property
    def _tag(self) -> str:
        return CLOSE if self._body.in_block else OPEN


class TextTagReader:
    """A model without reasoning. Control tokens are text as they are spelled, but for a stop id at the end."""

    reasoning_tokens = 0

    def __init__(
        self, token_bytes: Callable[[int], bytes], stop_ids: Sequence[int], *, calls: bool = True
    ) -> None:
        self._token_bytes = token_bytes
        self._stop_ids = stop_ids
        self._stop: int | None = None
        """A stop id that may be the end."""
        self._characters = Characters()
        self._tags = TextTags(calls=calls)

    def feed(self, ids: TokenIds) -> Sequence[Delta]:
        if not ids:
            return ()
        known = [*ids] if self._stop is None else [self._stop, *ids]
        self._stop = known.pop() if known[-1] in self._stop_ids else None
        return self._tags.feed(self._characters.feed(b"".join(map(self._token_bytes, known))))

    def finish(self) -> Sequence[Delta]:
        return [*self._tags.feed(self._characters.finish()), *self._tags.finish()]


def parse_tool_calls(text: str) -> Message:
    """An assistant message from its whole text."""
    tags = TextTags()
    return message_of([*tags.feed(text), *tags.finish()])


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of the text begin the tag."""
    longest = min(len(text), len(tag) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(tag[:size])), 0)
