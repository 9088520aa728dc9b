"""A scripted engine for tests, yours and ours.

It splits sampled text into other tokens than a tokenizer would, as real models do. A caller that encodes the text
again instead of keeping the sampled ids sends different ids, and gets an error.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec
from pydantic import BaseModel
from tokenizers import Tokenizer

from polar.engines.base import EndReason, EngineInfo, GenerateRequest, Piece
from polar.engines.pieces import cut_at_stop
from polar.errors import ContextOverflow, EngineBusy, EngineError
from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.tokens.sequences import first_difference
from polar.types import Strict, TokenIds, logprobs, token_ids


class Encoder(Protocol):
    """The tokenizer that the engine needs; `Vocabulary` is one."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class ScriptedReply(msgspec.Struct, frozen=True):
    """One turn of the script. A plain string or a list of ids is short for a reply with only `text` or `ids`."""

    text: str = ""
    """Sampled with one token split differently from the tokenizer, then the request's first stop id."""
    ids: tuple[int, ...] | None = None
    """Sampled exactly like this, instead of a text."""
    error: str = ""
    """Raised as `EngineError` after the tokens."""
    busy_s: float | None = None
    """Raise `EngineBusy` before any token, with this `retry_after_s`."""
    block_after: int | None = None
    """Wait after this many tokens until `release` is called or the generation is cancelled."""
    abort: bool = False
    """End with the finish reason `aborted`."""
    without_logprobs: bool = False


Turn = ScriptedReply | str | Sequence[int]
Script = Sequence[Turn] | Callable[[int, TokenIds], Turn]
"""The replies of each session in order, or a function of the turn (from 0) and the prompt's ids."""


class SeenRequest(msgspec.Struct):
    """A request that the engine received, and what it sampled for it so far."""

    request: GenerateRequest
    parent: int | None
    """Index of the earlier request whose prompt and completion this prompt begins with; None: a new root."""
    cached_tokens: int
    completion_ids: list[int] = []
    finished: bool = False
    """False if the reply was cancelled or failed: a caller may rephrase the part that it received."""

    @property
    def whole(self) -> list[int]:
        return [*self.request.prompt_ids, *self.completion_ids]


class ScriptedEngine:
    """Deterministic. If `strict`, it refuses a prompt that contains an earlier completion as different tokens."""

    Options: type[BaseModel] = Strict

    def __init__(
        self,
        encoder: Encoder | Tokenizer,
        script: Script,
        *,
        strict: bool = True,
        piece_tokens: int = 8,
        info: EngineInfo | None = None,
    ) -> None:
        self.encoder = encoder_of(encoder)
        self.requests: list[SeenRequest] = []
        """Every request since the start, in order of arrival."""
        self.active = 0
        """Running generations."""
        self._script = script
        self._strict = strict
        self._piece_tokens = piece_tokens
        self._info = info or EngineInfo("scripted", "script", 8192, "raw", parallel=64, constrains=True)
        self._counters: Counter[str] = Counter()
        self._released = asyncio.Event()
        self._running = False

    async def start(self) -> EngineInfo:
        self._running = True
        return self._info

    async def stop(self) -> None:
        self._running = False

    def release(self) -> None:
        """Continues every blocked generation."""
        self._released.set()

    def counters(self) -> dict[str, Any]:
        return dict(self._counters)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        if not self._running:
            raise EngineError("the scripted engine is not running; start it first")
        if len(request.prompt_ids) >= self._info.context_tokens:
            raise ContextOverflow(len(request.prompt_ids), self._info.context_tokens)
        turn = sum(seen.request.session_id == request.session_id for seen in self.requests)
        seen = self._see(request)
        reply = self._reply(turn, request)
        if reply.busy_s is not None:
            raise EngineBusy("the script says that the engine is busy", retry_after_s=reply.busy_s)
        self.active += 1
        try:
            async for piece in self._pieces(seen, reply):
                yield piece
        finally:
            self.active -= 1

    def _see(self, request: GenerateRequest) -> SeenRequest:
        prompt = request.prompt_ids.tolist()
        earlier = [s for s in self.requests if s.request.session_id == request.session_id]
        parents = [s for s in earlier if prompt[: len(s.whole)] == s.whole]
        parent = max(parents, key=lambda s: len(s.whole), default=None)
        if self._strict:
            self._refuse_changed_tokens(prompt, earlier, parent)
        cached = max((first_difference(prompt, s.whole) for s in earlier), default=0)
        index = None if parent is None else self.requests.index(parent)
        seen = SeenRequest(request, index, min(cached, len(prompt) - 1))
        self.requests.append(seen)
        return seen

    def _refuse_changed_tokens(
        self, prompt: list[int], earlier: list[SeenRequest], parent: SeenRequest | None
    ) -> None:
        text = self.encoder.decode(prompt)
        known = len(self.encoder.decode(parent.whole)) if parent else 0
        for seen in earlier:
            old = self.encoder.decode(seen.whole)
            if seen.finished and seen.completion_ids and len(old) > known and text.startswith(old):
                raise EngineError(
                    f"the prompt of session {seen.request.session_id} contains an earlier completion as different "
                    f"tokens: sampled {seen.completion_ids}; keep the sampled ids and append to them"
                )

    def _reply(self, turn: int, request: GenerateRequest) -> ScriptedReply:
        if callable(self._script):
            chosen = self._script(turn, request.prompt_ids)
        elif turn < len(self._script):
            chosen = self._script[turn]
        else:
            raise EngineError(f"the script has {len(self._script)} replies and none for turn {turn}; add one")
        if isinstance(chosen, ScriptedReply):
            return chosen
        return ScriptedReply(text=chosen) if isinstance(chosen, str) else ScriptedReply(ids=tuple(chosen))

    async def _pieces(self, seen: SeenRequest, reply: ScriptedReply) -> AsyncGenerator[Piece]:
        ids, reason = self._sampled(seen.request, reply)
        size = self._piece_tokens
        first = len(ids) if reply.block_after is None else reply.block_after
        for start in range(0, len(ids[:first]), size):
            yield self._piece(seen, ids[:first][start : start + size], reply)
        if reply.block_after is not None:
            await self._released.wait()
            yield self._piece(seen, ids[first:], reply)
        if reply.error:
            raise EngineError(reply.error)
        evaluated = len(seen.request.prompt_ids) - seen.cached_tokens
        counts = {"evaluated_tokens": evaluated, "cached_tokens": seen.cached_tokens, "calls": 1}
        self._counters.update(counts, sampled_tokens=len(ids))
        seen.finished = True
        yield Piece(token_ids(), logprobs(), finish_reason=reason, evaluated_tokens=evaluated)

    def _sampled(self, request: GenerateRequest, reply: ScriptedReply) -> tuple[list[int], EndReason]:
        scripted = [*split_once(self.encoder, reply.text), *request.stop_ids[:1]]
        ids = scripted if reply.ids is None else list(reply.ids)
        ids = ids[: request.max_tokens]
        ids = cut_at_stop(ids, request.stop_ids).tolist()
        if reply.abort:
            return ids, "aborted"
        stopped = bool(ids) and ids[-1] in request.stop_ids
        return ids, "stop" if stopped or len(ids) < request.max_tokens else "length"

    def _piece(self, seen: SeenRequest, ids: list[int], reply: ScriptedReply) -> Piece:
        first = len(seen.whole)
        values = [math.nan if reply.without_logprobs else pseudo_logprob(first + i, t) for i, t in enumerate(ids)]
        seen.completion_ids = [*seen.completion_ids, *ids]
        return Piece(token_ids(ids), logprobs(values))


def pseudo_logprob(position: int, token_id: int) -> float:
    """The engine's logprob of an id at a position of prompt + completion, between -5 and 0."""
    return -((position * 31 + token_id * 17) % 997 + 1) / 200


def split_once(encoder: Encoder, text: str) -> list[int]:
    """The text's ids with the first token that can be split replaced by two shorter ones: the same bytes, other
    ids."""
    ids = encoder.encode(text)
    for position, token_id in enumerate(ids):
        for parts in _halves(encoder, token_id):
            changed = [*ids[:position], *parts, *ids[position + 1 :]]
            if changed != ids and _joined(encoder, changed) == _joined(encoder, ids):
                return changed
    return ids


def _halves(encoder: Encoder, token_id: int) -> list[list[int]]:
    text = encoder.decode([token_id])
    return [encoder.encode(text[:cut]) + encoder.encode(text[cut:]) for cut in range(1, len(text))]


def _joined(encoder: Encoder, ids: list[int]) -> bytes:
    return b"".join(map(encoder.token_bytes, ids))


def encoder_of(source: Encoder | Tokenizer) -> Encoder:
    """Wraps a copy of a byte-level Hugging Face tokenizer."""
    return Vocabulary(Tokenizer.from_str(source.to_str())) if isinstance(source, Tokenizer) else source
