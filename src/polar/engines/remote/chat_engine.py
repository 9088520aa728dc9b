"""What engines in chat mode that are clients of an HTTP server have in common: room, refusals, counts.

A reply held to a JSON schema comes as one piece, scored afterwards, for the reason that `remote_engine.py` gives.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, ClassVar

import msgspec

from polar.engines.base import ChatPiece, ChatPrompt
from polar.engines.remote.engine import RemoteEngine
from polar.engines.remote.proof import one_piece
from polar.engines.remote.server import Refused, RemoteServer, StreamOptions
from polar.errors import ChatRefused, ContextOverflow, EngineError, SchemaRefused
from polar.types import Logprobs, TokenIds, token_ids

REFUSALS = (400, 413, 422)
OVERFLOW = re.compile(
    r"context length|max_model_len|maximum model length|maximum allowed length|longer than the model|KV memory",
    re.I,
)
SCHEMA = re.compile(r"schema|grammar|response_format|structured", re.I)
TOOLS = re.compile(r"tool[ _-]?choice|tool[ _-]?call[ _-]?parser", re.I)


class ChatOptions(StreamOptions):
    chat_template_kwargs: dict[str, Any] = {}
    """In chat mode, what the model's template is told besides the conversation, such as `enable_thinking`."""


class ConversingRemoteEngine(RemoteEngine):
    tool_flags: ClassVar[str]
    """What the server must be started with to read tool calls."""

    @abstractmethod
    def _talk(self, server: RemoteServer, conversation: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        """One reply of the server; the first piece has the prompt's ids."""

    @abstractmethod
    async def _count(self, server: RemoteServer, conversation: ChatPrompt) -> int:
        """As `count`, of a prompt of any length."""

    @abstractmethod
    async def _decode(self, server: RemoteServer, ids: TokenIds) -> str:
        """As `decode`; there is at least one id."""

    async def converse(self, conversation: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        server = self._running()
        self._counters["calls"] += 1
        if conversation.max_tokens is not None:
            bound = min(conversation.max_tokens, self._context_tokens)
            conversation = msgspec.structs.replace(conversation, max_tokens=bound)
        pieces = self._fitted(server, conversation)
        if conversation.json_schema is not None:
            pieces = self._scored(pieces)
        prompt_tokens = 0
        async with aclosing(pieces):
            async for heard in pieces:
                prompt_tokens += len(heard.prompt_ids or ())
                self._counted(heard.piece, prompt_tokens)
                yield heard

    async def count(self, conversation: ChatPrompt) -> int:
        try:
            return await self._count(self._running(), conversation)
        except Refused as error:
            if _is_overflow(error):
                raise ContextOverflow(self._context_tokens, self._context_tokens) from error
            raise self._explained(error, conversation) from error

    async def decode(self, ids: TokenIds) -> str:
        server = self._running()
        return await self._decode(server, ids) if ids else ""

    async def _fitted(self, server: RemoteServer, conversation: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        """The reply. A server may refuse more tokens than fit: then it is asked once more, for those that do."""
        shortened = False
        while True:
            begun = False
            try:
                async with aclosing(self._talk(server, conversation)) as pieces:
                    async for heard in pieces:
                        begun = True
                        yield heard
                return
            except Refused as error:
                if begun:
                    raise
                if not _is_overflow(error):
                    raise self._explained(error, conversation) from error
                prompt_tokens = await self.count(conversation)
                room = self._context_tokens - prompt_tokens
                if room < 1 or shortened:
                    raise ContextOverflow(prompt_tokens, self._context_tokens) from error
                bound = min(room, conversation.max_tokens or room)
                conversation = msgspec.structs.replace(conversation, max_tokens=bound)
                shortened = True

    async def _scored(self, pieces: AsyncGenerator[ChatPiece]) -> AsyncGenerator[ChatPiece]:
        async with aclosing(pieces):
            heard = [piece async for piece in pieces]
        piece = one_piece([part.piece for part in heard])
        values = await self._model_logprobs(heard[0].prompt_ids or token_ids(), piece.ids)
        yield msgspec.structs.replace(
            heard[-1],
            piece=msgspec.structs.replace(piece, logprobs=values),
            deltas=tuple(delta for part in heard for delta in part.deltas),
            prompt_ids=heard[0].prompt_ids,
        )

    async def _model_logprobs(self, prompt_ids: TokenIds, reply_ids: TokenIds) -> Logprobs:
        """As the model has them; NaN for a last token that is one too many to be scored."""
        ids = (prompt_ids + reply_ids)[: self._context_tokens]
        values = await self.score(ids, range(len(prompt_ids), len(ids)))
        values.extend([math.nan] * (len(reply_ids) - len(values)))
        return values

    def _explained(self, error: Refused, conversation: ChatPrompt) -> EngineError:
        if error.status not in REFUSALS:
            return error
        if conversation.json_schema is not None and SCHEMA.search(error.reason):
            return SchemaRefused(f"{self.product} refused the json_schema: {error.reason}")
        if conversation.tools and TOOLS.search(error.reason):
            return EngineError(f"{error}; to read tool calls, start it with {self.tool_flags}")
        return ChatRefused(f"{self.product} refused the conversation: {error.reason}")


def _is_overflow(error: Refused) -> bool:
    return error.status in REFUSALS and OVERFLOW.search(error.reason) is not None
