"""What engines that are clients of an HTTP server have in common: the start with its self-test, room, counts.

A reply held to a JSON schema comes as one piece: these servers give its logprobs among the choices that the schema
left, so its tokens are scored afterwards, as the model has them. They also keep stop ids out of such a reply until
its end; so it is sampled without any and cut at the first, which is exact: later tokens change no earlier ones.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

import msgspec
from pydantic import BaseModel

from polar.engines.base import EngineInfo, GenerateRequest, LogprobMode, Piece
from polar.engines.remote.prompt_json import PromptJson
from polar.engines.remote.proof import PROBE_IDS, PROBE_TEXT, Proof, joined
from polar.engines.remote.server import Refused, RemoteServer, StreamOptions
from polar.engines.stop_ids import cut_at_stop
from polar.errors import ContextOverflow, EngineError, SchemaRefused
from polar.types import Logprobs, TokenIds, logprobs, token_ids

COUNTERS = ("calls", "evaluated_tokens", "cached_tokens", "sampled_tokens", "missing_logprobs")


class Described(msgspec.Struct, frozen=True):
    """What a server says of itself."""

    model: str
    context_tokens: int
    """One less than the server's: it samples a token even when it scores, and any sequence shall be scored."""
    parallel: int
    version: str = ""


class Tokenized(msgspec.Struct, frozen=True):
    tokens: list[int]


class RemoteEngine(ABC):
    Options: type[BaseModel] = StreamOptions
    name: ClassVar[str]
    product: ClassVar[str]
    hint: ClassVar[str]
    """How such a server is started."""

    def __init__(self, options: StreamOptions, logprob_mode: LogprobMode | None) -> None:
        self._remote_options = options
        self._configured_mode: LogprobMode | None = logprob_mode
        self._server: RemoteServer | None = None
        self._context_tokens = 0
        self._prompts = PromptJson()
        self._counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))

    @abstractmethod
    async def _describe(self, server: RemoteServer) -> Described:
        """Reads what the server is, and finds out how it is asked."""

    @abstractmethod
    def _sample(self, server: RemoteServer, request: GenerateRequest, max_tokens: int) -> AsyncGenerator[Piece]:
        """One reply of the server; `max_tokens` fits into its context."""

    @abstractmethod
    async def _score(self, server: RemoteServer, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        """As `score`; there is at least one position, and nothing after the last of them."""

    async def start(self) -> EngineInfo:
        if self._server is not None:
            raise EngineError(f"the {self.name} engine is already started; stop it first")
        self._server = RemoteServer(self.product, self.hint, self._remote_options)
        limit_s = self._remote_options.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._start(self._server)
        except TimeoutError as error:
            await self.stop()
            raise EngineError(
                f"{self.product} at {self._remote_options.url} has not passed the self-test in {limit_s:.0f} s; "
                "see its log, or raise the engine option `start_timeout_s`"
            ) from error
        except BaseException:
            await self.stop()
            raise

    async def _start(self, server: RemoteServer) -> EngineInfo:
        described = await self._describe(server)
        self._context_tokens = described.context_tokens
        proof = Proof(self, f"{self.product} at {server.url}", await self._probe_ids(server))
        return EngineInfo(
            name=self.name,
            model=described.model,
            context_tokens=described.context_tokens,
            logprob_mode=await proof.run(self._configured_mode),
            parallel=described.parallel,
            version=described.version,
            constrains=True,
        )

    async def _probe_ids(self, server: RemoteServer) -> Sequence[int]:
        try:
            body = {"prompt": PROBE_TEXT, "add_special_tokens": False}
            return (await server.post("/tokenize", body, Tokenized)).tokens
        except Refused:
            return PROBE_IDS

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()

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
            held = await self._held(request, self._sample(server, unstopped, max_tokens))
            yield self._counted(held, len(request.prompt_ids))
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

    async def _held(self, request: GenerateRequest, pieces: AsyncGenerator[Piece]) -> Piece:
        try:
            piece = await joined(pieces)
        except Refused as error:
            if error.status in (400, 422):
                raise SchemaRefused(f"{self.product} refused the json_schema: {error.reason}") from error
            raise
        reply = token_ids(cut_at_stop(piece.ids, request.stop_ids))
        ids = request.prompt_ids + reply
        values = await self.score(ids, range(len(request.prompt_ids), len(ids)))
        stopped = bool(reply) and reply[-1] in request.stop_ids
        reason = "stop" if stopped else piece.finish_reason
        return msgspec.structs.replace(piece, ids=reply, logprobs=values, finish_reason=reason)

    def _counted(self, piece: Piece, prompt_tokens: int) -> Piece:
        self._counters["sampled_tokens"] += len(piece.ids)
        self._counters["missing_logprobs"] += sum(map(math.isnan, piece.logprobs))
        if piece.evaluated_tokens is not None:
            self._counters["evaluated_tokens"] += piece.evaluated_tokens
            self._counters["cached_tokens"] += prompt_tokens - piece.evaluated_tokens
        return piece

    def _headers(self, session_id: str) -> dict[str, str]:
        return {self._remote_options.session_header: session_id}
