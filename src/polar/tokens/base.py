"""The renderer port: conversations to token ids, and sampled ids back to messages, for one model family.

`bridge` appends to exact ids; sampled text is never encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from pydantic import BaseModel

from polar.types import Delta, Message, Retention, TokenIds, Tool


class ReplyReader(Protocol):
    """Reads one reply as it grows. However the ids are split, the joined deltas equal the result of `parse`;
    `test_reply_text.py` checks this for every renderer."""

    reasoning_tokens: int
    """How many of the ids read so far are reasoning."""

    def feed(self, ids: TokenIds) -> Sequence[Delta]:
        """What has become certain."""
        ...

    def finish(self) -> Sequence[Delta]:
        """The rest, when no more ids come."""
        ...


class Renderer(Protocol):
    """After `load` several threads call it at once, for different sessions."""

    Options: type[BaseModel]
    takes_images: bool
    """Whether messages may contain images."""

    async def load(self) -> None:
        """Fetches and reads what the renderer needs. Called before everything else."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes with the template, the tokenizer and the options: renderers with equal fingerprints render
        alike."""
        ...

    def retaining(self, retention: Retention) -> Renderer:
        """A renderer that treats earlier reasoning in this way; itself if the model does not reason."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        """The whole conversation, up to the start of the model's next turn."""
        ...

    def bridge(
        self,
        prompt_ids: TokenIds,
        completion_ids: TokenIds,
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> TokenIds | None:
        """The ids to append to prompt + completion to continue with `new_messages` and the model's next turn. None
        if this cannot be done exactly. The given arrays change later: do not keep them."""
        ...

    def parse(self, prompt_ids: TokenIds, completion_ids: TokenIds, *, calls: bool = True) -> Message:
        """The reply as a message, however its tokens are split. A tool call that cannot be read stays in the
        content as the model wrote it; without `calls` (no tool was offered) all of them do. The prompt shows in
        which state the reply began, such as reasoning."""
        ...

    def reader(self, prompt_ids: TokenIds, *, calls: bool = True) -> ReplyReader | None:
        """Reads a reply while it is sampled, with the result of `parse`. None if the family supports only
        `parse`."""
        ...

    def encode(self, text: str) -> TokenIds:
        """Encodes a prompt that the client rendered itself: control tokens where the text spells them."""
        ...

    def decode(self, ids: TokenIds) -> str:
        """Text for display, with special tokens spelled out."""
        ...


@runtime_checkable
class BoundedRenderer(Protocol):
    """A renderer that can reject an overlong text before encoding all of it."""

    def bounded(self, context_tokens: int) -> Renderer:
        """The same for a model with this context: raises `encoder.TooLong` for far more than that."""
        ...


@runtime_checkable
class AddingRenderer(Protocol):
    """A renderer that puts turns into prompts which the harness did not send."""

    def added(self, tools: Sequence[Tool]) -> str:
        """What it adds to a prompt with these tools, as `8 worked examples`; empty: nothing. Needs no `load`."""
        ...


def bounded(renderer: Renderer, context_tokens: int) -> Renderer:
    """The renderer limited to a context, if it supports that; else as it is."""
    return renderer.bounded(context_tokens) if isinstance(renderer, BoundedRenderer) else renderer
