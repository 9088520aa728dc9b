"""The engine port. An engine gets token ids and gives back the ids it sampled, each with its logprob.

Reading its pieces: every piece holds ids as they were sampled; the last one, and only that one, has a
`finish_reason`. An engine that cannot stream ids completely yields a single piece.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
from pydantic import BaseModel

from polar.types import Delta, Logprobs, Message, PolicySpan, Sampling, TokenIds, Tool

LogprobMode = Literal["raw", "processed"]
"""raw: of the model's own softmax; processed: of the distribution sampled from."""


class EngineInfo(msgspec.Struct, frozen=True):
    name: str
    model: str
    """What the engine calls its weights, with enough detail to tell two of them apart."""
    context_tokens: int
    """For each sequence, prompt and reply together."""
    logprob_mode: LogprobMode
    parallel: int
    """Sequences evaluated at once; more wait."""
    version: str = ""
    constrains: bool = False
    """Can hold a reply to a JSON schema."""


class GenerateRequest(msgspec.Struct, frozen=True):
    prompt_ids: TokenIds
    max_tokens: int
    sampling: Sampling
    stop_ids: tuple[int, ...]
    """Ids that end a reply; a sampled one stays in the ids."""
    session_id: str
    """Calls of one session stay with one replica and its prefix cache."""
    seed: int | None = None
    json_schema: dict[str, Any] | None = None
    """What the reply must be an instance of. Only an engine that `constrains` is asked for it; the logprobs are
    those of the model all the same, not of the choices the schema left."""


class Piece(msgspec.Struct, frozen=True):
    ids: TokenIds
    logprobs: Logprobs
    """One per id, NaN where the engine gave none."""
    finish_reason: Literal["stop", "length", "aborted"] | None = None
    evaluated_tokens: int | None = None
    """On the last piece: prompt tokens computed and not taken from the prefix cache."""
    policy_version: str = ""
    """Of the weights that sampled these ids, where the engine tells with each piece. It is believed where nothing
    was updated meanwhile: an engine may name what it has when it speaks, and not what it had when it sampled."""
    policy_spans: tuple[PolicySpan, ...] = ()
    """On the last piece: the versions of all the reply's tokens, where the engine keeps them by token, also where
    it is a single one. Where they cover the reply they are the truth. A span of no version was sampled before any
    was named; where none was named, there are no spans."""


class Engine(Protocol):
    Options: type[BaseModel]

    async def start(self) -> EngineInfo:
        """Makes the engine ready, proving that ids and logprobs come back. Raises `EngineError`."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        """Samples one reply. Closing the iterator stops the generation. Raises `EngineError`."""
        ...

    async def stop(self) -> None: ...

    def counters(self) -> dict[str, Any]:
        """What the engine itself counted since its start, such as `evaluated_tokens`."""
        ...


@runtime_checkable
class Revivable(Protocol):
    """An engine that owns the process which samples."""

    async def revive(self) -> None:
        """Starts that process again where it has ended, else does nothing. Raises `EngineError`."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """An engine that can also say how likely given tokens are: what an audit asks."""

    async def score(self, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        """The logprob of `ids[p]` after `ids[:p]`, for each of the positions, in the engine's logprob mode under
        plain sampling. Position 0 has nothing before it and is not asked for. Raises `EngineError`."""
        ...


class ChatPrompt(msgspec.Struct, frozen=True):
    """What is asked of an engine that lays the prompt out itself."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    sampling: Sampling
    stop: tuple[str, ...]
    """Texts that end a reply; the ids that spell one stay in the ids."""
    session_id: str
    max_tokens: int | None = None
    """None: what the context leaves."""
    seed: int | None = None
    json_schema: dict[str, Any] | None = None


class ChatPiece(msgspec.Struct, frozen=True):
    piece: Piece
    deltas: tuple[Delta, ...] = ()
    """What the ids so far say and was not said before, as the engine reads it. Tool calls come whole."""
    prompt_ids: TokenIds | None = None
    """On the first piece: what the engine made of the conversation."""
    stop_sequence: str = ""
    """On the last piece: the stop text that ended the reply."""


@runtime_checkable
class ChatEngine(Protocol):
    """An engine that can also lay out prompts and read replies itself: chat mode."""

    counts_by_sampling: bool
    """Whether `count` makes the engine generate, which it must not while generation is paused."""

    def converse(self, conversation: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        """Samples one reply. Closing the iterator stops the generation. Raises `EngineError`, for a conversation
        that the model's template refuses `ConversationRefused`."""
        ...

    async def count(self, conversation: ChatPrompt) -> int:
        """How many tokens the prompt has. Raises as `converse` does."""
        ...

    async def decode(self, ids: TokenIds) -> str:
        """Text with special tokens spelled out."""
        ...
