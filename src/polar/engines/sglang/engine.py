"""The `sglang` engine: a client of an SGLang server, with token ids or in chat mode."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

import msgspec
from pydantic import BaseModel

from polar.engines.base import ChatPiece, ChatPrompt, EngineInfo, GenerateRequest, Piece
from polar.engines.pieces import or_missing
from polar.engines.remote.chat_engine import RemoteChatEngine
from polar.engines.remote.chat_protocol import CHAT, DETOKENIZE
from polar.engines.remote.engine import ModelList
from polar.engines.remote.server import END_REASONS, RemoteServer, ServerRefused, StreamOptions
from polar.engines.sglang.chat import (
    SglangChatReply,
    SglangDetokenizeReply,
    chat_body,
    chat_piece,
    count_body,
    prompt_tokens_in,
)
from polar.engines.sglang.protocol import (
    GENERATE,
    MISSING,
    ModelInfo,
    ReplyProgress,
    ServerInfo,
    SglangEvent,
    generation_body,
    score_body,
)
from polar.errors import EngineDefect, EngineError
from polar.types import Logprobs, TokenIds, logprobs, token_ids

RESERVED_TOKENS = 6
"""SGLang refuses prompts that leave fewer tokens of its context free."""
ABORT_TIMEOUT_S = 5.0
"""A cancelled call does not wait longer for a server that hangs."""

T = TypeVar("T")


class SglangOptions(StreamOptions):
    session_header: str = "x-smg-routing-key"


class SglangEngine(RemoteChatEngine):
    Options: type[BaseModel] = SglangOptions
    name = "sglang"
    counts_by_sampling = True
    product = "SGLang"
    hint = "python -m sglang.launch_server --model-path MODEL --incremental-streaming-output"
    tool_flags = "--tool-call-parser PARSER"

    async def _describe(self, server: RemoteServer) -> EngineInfo:
        model = await _either(server, "/model_info", "/get_model_info", ModelInfo)
        if not model.is_generation:
            raise EngineError(f"{model.model_path} at {server.url} does not generate; serve another model")
        info = await _either(server, "/server_info", "/get_server_info", ServerInfo)
        longest = info.max_req_input_len
        if longest is None:
            cards = (await server.get("/v1/models", ModelList)).data
            longest = cards[0].max_model_len - RESERVED_TOKENS if cards and cards[0].max_model_len else None
        if longest is None:
            raise EngineDefect(f"SGLang at {server.url} does not report its context length; use no proxy")
        parallel = info.max_running_requests or self._options.parallel
        return self._info(model.model_path, longest, parallel, info.version)

    async def _sample(
        self, server: RemoteServer, request: GenerateRequest, max_tokens: int
    ) -> AsyncGenerator[Piece]:
        request_id = uuid.uuid4().hex
        prompt = self._prompts.write(request.session_id, request.prompt_ids)
        body = generation_body(request, max_tokens, request_id, prompt)
        progress, ended = ReplyProgress(), False
        try:
            async with aclosing(server.stream(GENERATE, body, self._headers(request.session_id))) as batches:
                async for batch in batches:
                    for event in server.read_all(batch, GENERATE, SglangEvent):
                        piece = _piece(server, event, progress)
                        ended = piece.finish_reason is not None
                        if ended or piece.ids:
                            yield piece
                        if ended:
                            return
            raise EngineError(f"SGLang at {server.url} ended a reply without a reason; see the server's log")
        finally:
            if not ended:
                await _abort(server, request_id)

    async def _chat(self, server: RemoteServer, prompt: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        request_id = uuid.uuid4().hex
        body = chat_body(prompt, self._options.chat_template_kwargs, request_id)
        try:
            reply = await server.post(CHAT, body, SglangChatReply, self._headers(prompt.session_id))
        except ServerRefused:
            raise
        except BaseException:
            await _abort(server, request_id)
            raise
        yield chat_piece(server, reply)

    async def _count(self, server: RemoteServer, prompt: ChatPrompt) -> int:
        body = count_body(prompt, self._options.chat_template_kwargs)
        try:
            reply = await server.post(CHAT, body, SglangChatReply, self._headers(prompt.session_id))
        except ServerRefused as error:
            if (tokens := prompt_tokens_in(error.reason)) is not None:
                return tokens
            raise
        return reply.usage.prompt_tokens

    async def _decode(self, server: RemoteServer, ids: TokenIds) -> str:
        body = {"tokens": ids.tolist(), "skip_special_tokens": False}
        return (await server.post(DETOKENIZE, body, SglangDetokenizeReply)).text

    async def _score(self, server: RemoteServer, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        start = min(positions) - 1
        answer = await server.post(GENERATE, score_body(ids.tolist(), start), SglangEvent)
        reports = answer.meta_info.input_token_logprobs or []
        if [token_id for _, token_id, _ in reports] != ids[start:].tolist():
            raise EngineDefect(f"SGLang at {server.url} gave no `input_token_logprobs` for the requested tokens")
        return logprobs(or_missing(reports[position - start][0], MISSING) for position in positions)


async def _either(server: RemoteServer, path: str, older_path: str, kind: type[T]) -> T:
    try:
        return await server.get(path, kind)
    except ServerRefused as error:
        if error.status != 404:
            raise
        return await server.get(older_path, kind)


async def _abort(server: RemoteServer, request_id: str) -> None:
    with suppress(EngineError, TimeoutError):  # the closed connection aborts the reply, too
        async with asyncio.timeout(ABORT_TIMEOUT_S):
            await server.post("/abort_request", {"rid": request_id}, msgspec.Raw)


def _piece(server: RemoteServer, event: SglangEvent, progress: ReplyProgress) -> Piece:
    if event.error is not None:
        raise server.fault(GENERATE, event.error)
    meta = event.meta_info
    finish = meta.finish_reason
    if finish is not None and finish.type == "abort":
        finish.check(server, GENERATE)
        return Piece(token_ids(), logprobs(), "aborted")
    version = meta.version_at(progress.count)
    ids, values = progress.new(event)
    if finish is None:
        return Piece(token_ids(ids), logprobs(values), policy_version=version)
    reason = END_REASONS[finish.type]
    return Piece(token_ids(ids), logprobs(values), reason, meta.evaluated_tokens, version, meta.policy_spans)
