"""The renderer port: a conversation to token ids and sampled ids back to a message, for one model family.

A renderer never sees sampled text on its way in: `bridge` appends to exact ids, it never encodes them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from pydantic import BaseModel

from polar.types import Delta, Message, Retention, TokenIds, Tool


class ReplyReader(Protocol):
    """Reads one reply as it grows. Put together, the deltas of any split of the same ids are what `parse` says of
    them: `test_reading.py` holds every renderer to it."""

    reasoning_tokens: int
    """How many of the ids read so far are reasoning."""

    def feed(self, ids: TokenIds) -> Sequence[Delta]:
        """What is certain now and was not before."""
        ...

    def finish(self) -> Sequence[Delta]:
        """The rest, when no more ids come."""
        ...


class Renderer(Protocol):
    """After `load` it is called from several threads at once, for different sessions."""

    Options: type[BaseModel]
    takes_images: bool
    """Whether a message may hold images."""

    async def load(self) -> None:
        """Fetches and reads what the renderer needs. Comes before everything else."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes with the template, the tokenizer or an option: two equal ones render alike."""
        ...

    def retaining(self, retention: Retention) -> Renderer:
        """The same for conversations whose earlier thinking is kept in this way; itself where the model does not
        think."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        """The whole conversation, ready for the model's next turn."""
        ...

    def bridge(
        self,
        prompt_ids: TokenIds,
        completion_ids: TokenIds,
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> TokenIds | None:
        """The ids to append to prompt + completion so that the conversation goes on with `new_messages` and
        the model's next turn. None where this cannot be done exactly. The given ids are lent, not to be kept."""
        ...

    def parse(self, prompt_ids: TokenIds, completion_ids: TokenIds, *, calls: bool = True) -> Message:
        """What the model said, in whatever way its tokens are split. A tool call that cannot be read stays in
        the content as the model wrote it; without `calls` every one does, because no tool was offered. The prompt
        tells in which state, such as thinking, it began."""
        ...

    def reader(self, prompt_ids: TokenIds, *, calls: bool = True) -> ReplyReader | None:
        """Reads a reply while it is sampled, as `parse` does. None where the family is read only as a whole."""
        ...

    def encode(self, text: str) -> TokenIds:
        """A prompt that its sender has laid out himself: text as it is, control tokens where they are spelled."""
        ...

    def decode(self, ids: TokenIds) -> str:
        """Text with special tokens spelled out, for people to read."""
        ...


@runtime_checkable
class BoundedRenderer(Protocol):
    """A renderer that refuses a text which cannot fit before it has encoded all of it."""

    def bounded(self, context_tokens: int) -> Renderer:
        """The same for a model with this context: raises `encoder.TooLong` for far more than that."""
        ...


def bounded(renderer: Renderer, context_tokens: int) -> Renderer:
    """A renderer for a model with this context; as it is where it has no bounds of its own."""
    return renderer.bounded(context_tokens) if isinstance(renderer, BoundedRenderer) else renderer
