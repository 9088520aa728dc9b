"""Replies of families that reason first and whose tags are single tokens: `<think>`, `</think>`, `<tool_call>`,
`</tool_call>`. Only the token is a tag; text that spells one is text.

A reply reasons if its prompt ends inside `<think>` or if it begins with that tag. The first `</think>` ends the
reasoning; after it both tags are text. A `<tool_call>` inside the reasoning is a draft if `</think>` comes later,
and ends the reasoning if not. Until that is known, what follows it is held back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from polar.tokens.replies.reply_text import ReplyBody, TrimmedText, Utf8Decoder
from polar.types import Delta, TokenIds


class IdTags(msgspec.Struct, frozen=True):
    """The ids of a family's tags and of its ends of turn."""

    think: int
    think_end: int
    tool_call: int
    tool_call_end: int
    stop_ids: frozenset[int]

    def thinking_at_end(self, prompt_ids: TokenIds) -> bool:
        """Whether the prompt ends inside `<think>`."""
        for token_id in reversed(prompt_ids):
            if token_id == self.think_end or token_id in self.stop_ids:
                return False
            if token_id == self.think:
                return True
        return False


class IdTagReader:
    """White space at the ends of reasoning and content is layout."""

    reasoning_tokens: int
    """Ids of the reasoning without its tags. A draft counts once it is known to be one."""

    def __init__(self, tags: IdTags, token_bytes: Sequence[bytes], *, thinking: bool, calls: bool = True) -> None:
        self.reasoning_tokens = 0
        self._tags = tags
        self._tag_ids = {tags.think, tags.think_end, tags.tool_call, tags.tool_call_end}
        self._token_bytes = token_bytes
        self._phase: Literal["opening", "reasoning", "draft", "body", "ended"]
        self._phase = "reasoning" if thinking else "opening"
        self._draft: list[int] = []
        """Ids from a `<tool_call>` in the reasoning on."""
        self._data: list[bytes] = []
        """Bytes since the last tag."""
        self._decoder = Utf8Decoder("replace")
        self._reasoning = TrimmedText()
        self._body = ReplyBody(verbatim=False, calls=calls)
        self._deltas: list[Delta] = []

    def feed(self, ids: TokenIds) -> Sequence[Delta]:
        for token_id in ids:
            self._take(token_id)
        self._add(self._text())
        return self._taken()

    def finish(self) -> Sequence[Delta]:
        self._end_text()
        draft, self._draft = self._draft, []
        if draft:
            self._phase = "body"
            for token_id in draft:
                self._take(token_id)
            self._end_text()
        self._body.finish()
        return self._taken()

    def _take(self, token_id: int) -> None:
        if self._phase == "ended":
            return
        if token_id in self._tags.stop_ids:
            self._end_text()
            self._phase = "ended"
        elif self._phase == "draft":
            self._draft.append(token_id)
            if token_id == self._tags.think_end:
                self._end_draft()
        elif token_id not in self._tag_ids:
            self._take_text(token_id)
        elif self._phase != "reasoning" or token_id != self._tags.think:  # a second <think> is ignored
            self._end_text()
            self._take_tag(token_id)

    def _take_text(self, token_id: int) -> None:
        self.reasoning_tokens += self._phase == "reasoning"
        if token_id < len(self._token_bytes):  # a model may have more ids than its tokenizer
            self._data.append(self._token_bytes[token_id])

    def _take_tag(self, token_id: int) -> None:
        tags, body = self._tags, self._body
        if self._phase == "opening":
            self._phase = "reasoning" if token_id == tags.think else "body"
            if self._phase == "reasoning":
                return
        if self._phase == "reasoning" and token_id == tags.think_end:
            self._phase = "body"
        elif self._phase == "reasoning" and token_id == tags.tool_call:
            self._phase, self._draft = "draft", [token_id]
        elif self._phase == "body" and token_id == tags.tool_call and not body.in_block:
            body.open_block()
        elif self._phase == "body" and token_id == tags.tool_call_end and body.in_block:
            body.close_block()
        else:
            self._take_text(token_id)

    def _end_draft(self) -> None:
        draft, self._draft = self._draft[:-1], []
        self._phase = "reasoning"
        for token_id in draft:
            if token_id != self._tags.think:
                self._take_text(token_id)
        self._end_text()
        self._phase = "body"

    def _text(self) -> str:
        data, self._data = self._data, []
        return self._decoder.decode(b"".join(data))

    def _end_text(self) -> None:
        self._add(self._text() + self._decoder.decode(b"", final=True))

    def _add(self, text: str) -> None:
        if self._phase == "reasoning":
            certain = self._reasoning.feed(text)
            if certain:
                self._deltas.append(Delta(reasoning=certain))
            return
        if self._phase == "opening" and text.strip():
            self._phase = "body"
        self._body.text(text)

    def _taken(self) -> Sequence[Delta]:
        deltas, self._deltas = self._deltas, []
        return [*deltas, *self._body.take()]
