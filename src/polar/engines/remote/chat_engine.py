"""What chat mode of engines shares that are clients of an HTTP server: room in the context, refusals, schemas.

A reply with a JSON schema is one piece, scored afterwards, for the reason given in `engine.py`.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import ClassVar

import msgspec

from polar.engines.base import ChatPiece, ChatPrompt
from polar.engines.pieces import one_piece
from polar.engines.remote.engine import RemoteEngine
from polar.engines.remote.server import RemoteServer, ServerRefused
from polar.errors import ChatRefused, ContextOverflow, EngineError, SchemaRefused
from polar.types import TokenIds, token_ids

REFUSALS = (400, 413, 422)
OVERFLOW = re.compile(
    r"context length|max_model_len|maximum model length|maximum allowed length|longer than the model|KV memory",
    re.I,
)
SCHEMA = re.compile(r"schema|grammar|response_format|structured", re.I)
TOOLS = re.compile(r"tool[ _-]?choice|tool[ _-]?call[ _-]?parser", re.I)


class RemoteChatEngine(RemoteEngine):
    tool_flags: ClassVar[str]
    """The server's flags that make it parse tool calls."""

    @abstractmethod
    def _chat(self, server: RemoteServer, prompt: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        """One reply of the server; the first piece has the prompt's ids."""

    @abstractmethod
    async def _count(self, server: RemoteServer, prompt: ChatPrompt) -> int:
        """As `count`, for a prompt of any length."""

    @abstractmethod
    async def _decode(self, server: RemoteServer, ids: TokenIds) -> str:
        """As `decode`, for at least one id."""

    async def chat(self, prompt: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        server = self._running()
        self._counters["calls"] += 1
        if prompt.max_tokens is not None:
            prompt = _limited(prompt, min(prompt.max_tokens, self._context_tokens))
        pieces = self._fitted(server, prompt)
        if prompt.json_schema is not None:
            pieces = self._scored(pieces)
        prompt_tokens = 0
        async with aclosing(pieces):
            async for part in pieces:
                prompt_tokens += len(part.prompt_ids or ())
                self._counted(part.piece, prompt_tokens)
                yield part

    async def count(self, prompt: ChatPrompt) -> int:
        try:
            return await self._count(self._running(), prompt)
        except ServerRefused as error:
            if _is_overflow(error):
                raise ContextOverflow(self._context_tokens, self._context_tokens) from error
            raise self._explained(error, prompt) from error

    async def decode(self, ids: TokenIds) -> str:
        server = self._running()
        return await self._decode(server, ids) if ids else ""

    async def _fitted(self, server: RemoteServer, prompt: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        """The reply. If the server refuses `max_tokens` because they do not fit, retries once with what fits."""
        shortened = False
        while True:
            begun = False
            try:
                async with aclosing(self._chat(server, prompt)) as pieces:
                    async for part in pieces:
                        begun = True
                        yield part
                return
            except ServerRefused as error:
                if begun:
                    raise
                if not _is_overflow(error):
                    raise self._explained(error, prompt) from error
                prompt_tokens = await self.count(prompt)
                room = self._context_tokens - prompt_tokens
                if room < 1 or shortened:
                    raise ContextOverflow(prompt_tokens, self._context_tokens) from error
                prompt = _limited(prompt, min(room, prompt.max_tokens or room))
                shortened = True

    async def _scored(self, pieces: AsyncGenerator[ChatPiece]) -> AsyncGenerator[ChatPiece]:
        async with aclosing(pieces):
            parts = [part async for part in pieces]
        piece = one_piece([part.piece for part in parts])
        values = await self._model_logprobs(parts[0].prompt_ids or token_ids(), piece.ids)
        yield msgspec.structs.replace(
            parts[-1],
            piece=msgspec.structs.replace(piece, logprobs=values),
            deltas=tuple(delta for part in parts for delta in part.deltas),
            prompt_ids=parts[0].prompt_ids,
        )

    def _explained(self, error: ServerRefused, prompt: ChatPrompt) -> EngineError:
        if error.status not in REFUSALS:
            return error
        if prompt.json_schema is not None and SCHEMA.search(error.reason):
            return SchemaRefused(f"{self.product} refused the json_schema: {error.reason}")
        if prompt.tools and TOOLS.search(error.reason):
            return EngineError(f"{error}; to parse tool calls, start it with {self.tool_flags}")
        return ChatRefused(f"{self.product} refused the messages: {error.reason}")


def _limited(prompt: ChatPrompt, max_tokens: int) -> ChatPrompt:
    return msgspec.structs.replace(prompt, max_tokens=max_tokens)


def _is_overflow(error: ServerRefused) -> bool:
    return error.status in REFUSALS and OVERFLOW.search(error.reason) is not None
