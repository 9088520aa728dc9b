"""What reading a reply as it grows has in common, whatever the family: the text and tool calls of its visible
part, and the deltas put together to a message.

The rule for white space is one that can be decided while the reply is sampled. Around calls it is layout: after
a call it counts only when more text comes, and at the end of a reply with calls it is dropped. `to_the_letter`
keeps the rest as it was sampled; without it, white space at both ends of the reply is layout too.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from polar.tokens.base import ReplyReader
from polar.tokens.replies.call_block import CLOSE, OPEN, read_call
from polar.types import Delta, Message, TokenIds, ToolCall


def message_of(deltas: Iterable[Delta]) -> Message:
    """All deltas of a reply, put together."""
    parts = list(deltas)
    calls: list[ToolCall] = [part.tool_call for part in parts if part.tool_call is not None]
    return Message(
        role="assistant",
        content="".join(part.content for part in parts),
        reasoning="".join(part.reasoning for part in parts),
        tool_calls=tuple(calls),
    )


def read_whole(reader: ReplyReader, ids: TokenIds) -> Message:
    """A finished reply, read in one go."""
    return message_of([*reader.feed(ids), *reader.finish()])


class Characters:
    """Bytes to text. The beginning of a character waits for its rest; bytes that form none become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def finish(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class Margins:
    """Text without the white space at its ends: what may be the end is held back until more text comes."""

    def __init__(self) -> None:
        self.started = False
        """Whether there was anything but white space."""
        self._space: list[str] = []

    def feed(self, text: str, *, keep_first: bool = False) -> str:
        """The text that is certain now. `keep_first`: if it is the first, with the white space before it."""
        kept = text.rstrip()
        if not kept:
            self._space.append(text)
            return ""
        whole = "".join([*self._space, kept])
        self._space = [text[len(kept) :]]
        certain = whole if self.started or keep_first else whole.lstrip()
        self.started = True
        return certain

    def rest(self) -> str:
        """The white space at the end."""
        return "".join(self._space)


class Body:
    """The visible part of a reply. Whoever finds the tags says where a block of a call opens and closes; all
    other text, also that inside a block, comes as `text`."""

    def __init__(self, *, to_the_letter: bool, calls: bool = True) -> None:
        """`calls`: whether blocks are calls; else they are text as it was written."""
        self._to_the_letter = to_the_letter
        self._calls = calls
        self._deltas: list[Delta] = []
        self._margins = Margins()
        self._has_calls = False
        self._block: list[str] | None = None

    @property
    def in_block(self) -> bool:
        return self._block is not None

    def taken(self) -> Sequence[Delta]:
        """The deltas since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def text(self, text: str) -> None:
        if self._block is not None:
            self._block.append(text)
        elif text:
            self._say(self._margins.feed(text, keep_first=self._to_the_letter and not self._has_calls))

    def open_block(self) -> None:
        self._block = []

    def close_block(self, tag: str = CLOSE) -> None:
        block, self._block = "".join(self._block or ()), None
        call = read_call(block) if self._calls else None
        if call is None:
            self.text(f"{OPEN}{block}{tag}")
        else:
            self._has_calls = True
            self._deltas.append(Delta(tool_call=call))

    def finish(self) -> None:
        """A last block may lack its closing tag if its JSON is complete."""
        if self.in_block:
            self.close_block(tag="")
        if self._to_the_letter and not self._has_calls:
            self._say(self._margins.rest())

    def _say(self, text: str) -> None:
        if text:
            self._deltas.append(Delta(content=text))
