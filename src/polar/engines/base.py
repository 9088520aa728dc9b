"""The engine port: token ids in, sampled token ids out, each with its logprob.

A plug-in implements `Engine`. The other ports are optional.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
from pydantic import BaseModel

from polar.types import Delta, EndpointUsage, Logprobs, Message, PolicySpan, Sampling, TokenIds, Tool

LogprobMode = Literal["raw", "processed"]
"""raw: of the model's own softmax; processed: of the distribution sampled from."""
EndReason = Literal["stop", "length", "aborted"]


class EngineInfo(msgspec.Struct, frozen=True):
    name: str
    model: str
    """Identifies the weights, in enough detail to tell two versions apart."""
    context_tokens: int
    """For each sequence, prompt and reply together."""
    logprob_mode: LogprobMode | Literal["none"]
    """none: it gives no logprobs, and nothing it samples can be trained on."""
    parallel: int
    """Sequences evaluated at once; more wait."""
    version: str = ""
    constrains: bool = False
    """Supports schema-constrained decoding."""


class GenerateRequest(msgspec.Struct, frozen=True):
    prompt_ids: TokenIds
    max_tokens: int
    sampling: Sampling
    stop_ids: tuple[int, ...]
    """Ids that end a reply; a sampled one stays in the ids."""
    session_id: str
    """Keeps the calls of a session on one replica, which has its prefix in the cache."""
    seed: int | None = None
    json_schema: dict[str, Any] | None = None
    """The reply must be an instance of it. Set only if the engine `constrains`. The logprobs stay those of the
    unconstrained model."""


class Piece(msgspec.Struct, frozen=True):
    """A part of a reply: the ids in the order they were sampled. An engine that cannot stream ids completely
    yields a single piece."""

    ids: TokenIds
    logprobs: Logprobs
    """One per id, NaN where the engine gave none."""
    finish_reason: EndReason | None = None
    """On the last piece, and only there."""
    evaluated_tokens: int | None = None
    """On the last piece: prompt tokens that the engine computed instead of taking them from the prefix cache."""
    policy_version: str = ""
    """Version of the weights that sampled these ids, if the engine reports one per piece. It is ignored if the
    weights were updated meanwhile: an engine may report the version at sending time, not at sampling time."""
    policy_spans: tuple[PolicySpan, ...] = ()
    """On the last piece: the version of each token of the reply, if the engine records it per token. Where the
    spans cover the reply they take precedence over `policy_version`. A span with an empty version was sampled
    before any version was set; if none was ever set, there are no spans."""


class Engine(Protocol):
    Options: type[BaseModel]

    async def start(self) -> EngineInfo:
        """Starts the engine and checks that ids and logprobs come back. Raises `EngineError`."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        """Samples one reply. Closing the iterator stops the generation. Raises `EngineError`."""
        ...

    async def stop(self) -> None: ...

    def counters(self) -> dict[str, Any]:
        """The engine's own counts since its start, such as `evaluated_tokens`."""
        ...


@runtime_checkable
class Revivable(Protocol):
    """An engine that owns the process which samples."""

    async def revive(self) -> None:
        """Restarts the process if it has ended. Raises `EngineError`."""
        ...


@runtime_checkable
class Pingable(Protocol):
    """An engine whose server can be asked whether it answers, at no cost."""

    async def ping(self) -> None:
        """Samples nothing, and so also answers while the server is held for a weight update. Raises
        `EngineError`."""
        ...


@runtime_checkable
class PolicyFollower(Protocol):
    """An engine that checks its weights when the policy version changes."""

    def policy_changed(self, version: str) -> None:
        """The node records later calls under `version`."""
        ...


@runtime_checkable
class Replicated(Protocol):
    """An engine of several servers with the same weights."""

    def replicas(self) -> dict[str, str]:
        """Why each replica gets no calls; empty for those that do."""
        ...


@runtime_checkable
class Shareable(Protocol):
    """An engine whose process can be started once for several nodes and a trainer."""

    def shared(self, model: str) -> AbstractAsyncContextManager[dict[str, Any]]:
        """Runs the process with the weights of `model`. Yields the options by which nodes use it, instead of
        starting their own. Raises `EngineError`."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """An engine that can compute the logprobs of given tokens, as an audit needs."""

    async def score(self, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        """The logprob of `ids[p]` after `ids[:p]` for each position, in the engine's logprob mode under plain
        sampling. Position 0 is not allowed: nothing precedes it. Raises `EngineError`."""
        ...


class ChatPrompt(msgspec.Struct, frozen=True):
    """A request in chat mode."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    sampling: Sampling
    stop: tuple[str, ...]
    """Texts that end a reply; the ids that spell one stay in the ids."""
    session_id: str
    max_tokens: int | None = None
    """None: as many as the context allows."""
    seed: int | None = None
    json_schema: dict[str, Any] | None = None


class ChatPiece(msgspec.Struct, frozen=True):
    piece: Piece
    deltas: tuple[Delta, ...] = ()
    """The new part of the reply as the engine parsed it. A tool call comes as one delta."""
    prompt_ids: TokenIds | None = None
    """On the first piece: the prompt as the engine rendered it."""
    stop_sequence: str = ""
    """On the last piece: the stop text that ended the reply."""


@runtime_checkable
class ChatEngine(Protocol):
    """An engine with chat mode: it renders prompts and parses replies itself."""

    counts_by_sampling: bool
    """Whether `count` makes the engine generate, which it must not while generation is paused."""

    def chat(self, prompt: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        """Samples one reply. Closing the iterator stops the generation. Raises `EngineError`, and `ChatRefused`
        if the model's template cannot render the messages."""
        ...

    async def count(self, prompt: ChatPrompt) -> int:
        """Number of tokens of the rendered prompt. Raises as `chat` does."""
        ...

    async def decode(self, ids: TokenIds) -> str:
        """Text with special tokens spelled out."""
        ...


class TextPiece(msgspec.Struct, frozen=True):
    """A part of a reply that has no token ids."""

    deltas: tuple[Delta, ...] = ()
    """The new part of the reply. A tool call comes as one delta."""
    finish_reason: EndReason | None = None
    """On the last piece, and only there."""
    usage: EndpointUsage | None = None
    """On the last piece, if the endpoint counts tokens."""
    stop_sequence: str = ""
    """On the last piece: the stop text that ended the reply."""


@runtime_checkable
class TextEngine(Protocol):
    """An engine that gives text and no token ids, so that none of its sessions can be trained on. The port has no
    field for ids or logprobs."""

    def text(self, prompt: ChatPrompt) -> AsyncGenerator[TextPiece]:
        """Samples one reply. Closing the iterator stops the generation. Raises as `ChatEngine.chat` does."""
        ...
