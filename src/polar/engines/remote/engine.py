"""What engines share that are clients of an HTTP server: the start with its self-test, schemas, counters.

A reply with a JSON schema is one piece. These servers report its logprobs among the choices that the schema
allowed, so the engine scores the tokens afterwards to get those of the model. The servers also suppress stop ids
until the JSON is complete; so the engine samples without stop ids and cuts the reply at the first one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, NamedTuple

import msgspec
import orjson

from polar.engines.base import EngineInfo, GenerateRequest, Piece
from polar.engines.pieces import cut_at_stop, joined
from polar.engines.remote.proof import PROBE_IDS, PROBE_TEXT, Proof, within
from polar.engines.remote.server import RemoteServer, ServerRefused, StreamOptions, bearer
from polar.errors import ContextOverflow, EngineError, SchemaRefused
from polar.types import Logprobs, TokenIds, logprobs

COUNTERS = ("calls", "evaluated_tokens", "cached_tokens", "sampled_tokens", "missing_logprobs")
SHORT_TOKENS = 512
"""Prompts up to this length are not cached."""
MOST_PROMPTS = 8
"""Cached prompts per session, whose sub-agents take turns."""
MOST_BYTES = 256 * 2**20
"""Of all cached prompts, about 10 bytes a token. The least recently used session is dropped first."""


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]


class TokenizeReply(msgspec.Struct, frozen=True):
    tokens: list[int]


class RemoteEngine(ABC):
    name: ClassVar[str]
    product: ClassVar[str]
    hint: ClassVar[str]
    """The command that starts such a server."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._server: RemoteServer | None = None
        self._context_tokens = 0
        self._prompts = PromptJson()
        self._counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))

    @abstractmethod
    async def _describe(self, server: RemoteServer) -> EngineInfo:
        """Reads the server's model and limits, and chooses the route for generation. The logprob mode is measured
        later."""

    def _info(self, model: str, context_tokens: int, parallel: int, version: str) -> EngineInfo:
        """Leaves one token of the server's context free: it samples a token even when it scores, and every
        sequence must be scorable."""
        return EngineInfo(self.name, model, context_tokens - 1, "raw", parallel, version, constrains=True)

    @abstractmethod
    def _sample(self, server: RemoteServer, request: GenerateRequest, max_tokens: int) -> AsyncGenerator[Piece]:
        """One reply of the server; `max_tokens` fits into its context."""

    @abstractmethod
    async def _score(self, server: RemoteServer, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        """As `score`, with at least one position and no ids after the last position."""

    async def start(self) -> EngineInfo:
        if self._server is not None:
            raise EngineError(f"the {self.name} engine is already started; stop it first")
        options = self._options
        headers = bearer(options.api_key())
        self._server = RemoteServer(self.product, self.hint, options.url, headers, options.silence_timeout_s)
        try:
            return await within(
                options.start_timeout_s, self._start(self._server), f"{self.product} at {options.url}"
            )
        except BaseException:
            await self.stop()
            raise

    async def _start(self, server: RemoteServer) -> EngineInfo:
        info = await self._describe(server)
        self._context_tokens = info.context_tokens
        proof = Proof(self, f"{self.product} at {server.url}", await self._probe_ids(server))
        return msgspec.structs.replace(info, logprob_mode=await proof.run(self._options.logprob_mode))

    async def _probe_ids(self, server: RemoteServer) -> Sequence[int]:
        try:
            body = {"prompt": PROBE_TEXT, "add_special_tokens": False}
            return (await server.post("/tokenize", body, TokenizeReply)).tokens
        except ServerRefused:
            return PROBE_IDS

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    async def ping(self) -> None:
        await self._running().ping()

    def counters(self) -> dict[str, Any]:
        return dict(self._counters)

    def _running(self) -> RemoteServer:
        if self._server is None:
            raise EngineError(f"the {self.name} engine is not running; start it first")
        return self._server

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        server = self._running()
        room = self._context_tokens - len(request.prompt_ids)
        if room < 1:
            raise ContextOverflow(len(request.prompt_ids), self._context_tokens)
        self._counters["calls"] += 1
        max_tokens = min(room, request.max_tokens)
        if request.json_schema is not None:
            unstopped = msgspec.structs.replace(request, stop_ids=())
            piece = await self._constrained(request, self._sample(server, unstopped, max_tokens))
            yield self._counted(piece, len(request.prompt_ids))
            return
        async with aclosing(self._sample(server, request, max_tokens)) as pieces:
            async for piece in pieces:
                yield self._counted(piece, len(request.prompt_ids))

    async def score(self, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        server = self._running()
        if not positions:
            return logprobs()
        ids = ids[: max(positions) + 1]
        if len(ids) > self._context_tokens:
            raise ContextOverflow(len(ids), self._context_tokens)
        return await self._score(server, ids, positions)

    async def _constrained(self, request: GenerateRequest, pieces: AsyncGenerator[Piece]) -> Piece:
        try:
            piece = await joined(pieces)
        except ServerRefused as error:
            if error.status in (400, 422):
                raise SchemaRefused(f"{self.product} refused the json_schema: {error.reason}") from error
            raise
        reply = cut_at_stop(piece.ids, request.stop_ids)
        values = await self._model_logprobs(request.prompt_ids, reply)
        stopped = bool(reply) and reply[-1] in request.stop_ids
        reason = "stop" if stopped else piece.finish_reason
        return msgspec.structs.replace(piece, ids=reply, logprobs=values, finish_reason=reason)

    async def _model_logprobs(self, prompt_ids: TokenIds, reply_ids: TokenIds) -> Logprobs:
        """Those of the unconstrained model; NaN for a last token that does not fit into the context for
        scoring."""
        ids = (prompt_ids + reply_ids)[: self._context_tokens]
        values = await self.score(ids, range(len(prompt_ids), len(ids)))
        values.extend([math.nan] * (len(reply_ids) - len(values)))
        return values

    def _counted(self, piece: Piece, prompt_tokens: int) -> Piece:
        self._counters["sampled_tokens"] += len(piece.ids)
        self._counters["missing_logprobs"] += sum(map(math.isnan, piece.logprobs))
        if piece.evaluated_tokens is not None:
            self._counters["evaluated_tokens"] += piece.evaluated_tokens
            self._counters["cached_tokens"] += prompt_tokens - piece.evaluated_tokens
        return piece

    def _headers(self, session_id: str) -> dict[str, str]:
        return {self._options.session_header: session_id}


class WrittenPrompt(NamedTuple):
    ids: bytes
    """As the array stores them."""
    json: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.ids) + len(self.json)


class PromptJson:
    """Prompts as JSON, of which only the new ids are written.

    A prompt continues the one before it, and writing 80,000 numbers takes longer than the rest of a call. The
    result is byte for byte what `orjson` writes for the whole list.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._sessions: OrderedDict[str, list[WrittenPrompt]] = OrderedDict()
        """Prompts by session, the latest first; the least recently used session first."""
        self.size_bytes = 0

    def write(self, session_id: str, ids: TokenIds) -> orjson.Fragment:
        if len(ids) <= SHORT_TOKENS:
            return orjson.Fragment(orjson.dumps(ids.tolist()))
        cached = self._sessions.pop(session_id, [])
        raw = ids.tobytes()
        prefixes = [prompt for prompt in cached if raw.startswith(prompt.ids)]
        longest = max(prefixes, key=lambda prompt: len(prompt.ids), default=None)
        written = WrittenPrompt(raw, _json(ids, longest))
        rest = [prompt for prompt in cached if prompt is not longest][: MOST_PROMPTS - 1]
        self._sessions[session_id] = [written, *rest]
        self.size_bytes += _size_bytes(self._sessions[session_id]) - _size_bytes(cached)
        while self.size_bytes > self._most_bytes:
            self.size_bytes -= _size_bytes(self._sessions.popitem(last=False)[1])
        return orjson.Fragment(written.json)


def _json(ids: TokenIds, prefix: WrittenPrompt | None) -> bytes:
    if prefix is None:
        return orjson.dumps(ids.tolist())
    new_ids = ids[len(prefix.ids) // ids.itemsize :]
    if not new_ids:
        return prefix.json
    return b"".join((memoryview(prefix.json)[:-1], b",", memoryview(orjson.dumps(new_ids.tolist()))[1:]))


def _size_bytes(prompts: list[WrittenPrompt]) -> int:
    return sum(prompt.size_bytes for prompt in prompts)
