"""SGLang behind the token port, and in chat mode: a client of a server at its address."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

import msgspec
from pydantic import BaseModel

from polar.engines.base import ChatPiece, ChatPrompt, GenerateRequest, LogprobMode, Piece
from polar.engines.remote.chat_engine import ChatOptions, ConversingRemoteEngine
from polar.engines.remote.chat_protocol import CHAT
from polar.engines.remote.engine import Described
from polar.engines.remote.proof import or_missing
from polar.engines.remote.server import Refused, RemoteServer
from polar.engines.sglang.chat import (
    DETOKENIZE,
    ChatReply,
    Detokenized,
    conversation_body,
    conversation_piece,
    count_body,
    prompt_tokens_in,
)
from polar.engines.sglang.protocol import (
    FINISH,
    GENERATE,
    MISSING,
    Event,
    ModelInfo,
    ModelList,
    Progress,
    ServerInfo,
    generation_body,
    score_body,
)
from polar.errors import EngineDefect, EngineError
from polar.types import Logprobs, TokenIds, logprobs, token_ids

KEPT_TOKENS = 6
"""Of its context SGLang takes no prompt longer than all but so many."""
ABORT_TIMEOUT_S = 5.0
"""Whoever leaves a reply does not wait for a server that hangs."""

T = TypeVar("T")


class SglangOptions(ChatOptions):
    session_header: str = "x-smg-routing-key"
    logprob_mode: LogprobMode | None = None
    """None: measured at the start."""


class SglangEngine(ConversingRemoteEngine):
    Options: type[BaseModel] = SglangOptions
    name = "sglang"
    counts_by_sampling = True
    product = "SGLang"
    hint = "python -m sglang.launch_server --model-path MODEL --incremental-streaming-output"
    tool_flags = "--tool-call-parser PARSER"

    def __init__(self, options: SglangOptions) -> None:
        super().__init__(options, options.logprob_mode)
        self._options = options

    async def _describe(self, server: RemoteServer) -> Described:
        model = await _either(server, "/model_info", "/get_model_info", ModelInfo)
        if not model.is_generation:
            raise EngineError(f"SGLang at {server.url} serves {model.model_path}, which generates nothing")
        info = await _either(server, "/server_info", "/get_server_info", ServerInfo)
        longest = info.max_req_input_len
        if longest is None:
            cards = (await server.get("/v1/models", ModelList)).data
            longest = cards[0].max_model_len - KEPT_TOKENS if cards and cards[0].max_model_len else None
        if longest is None:
            raise EngineDefect(f"SGLang at {server.url} does not tell the length of its context; ask it directly")
        parallel = info.max_running_requests or self._options.parallel
        return Described(model.model_path, longest - 1, parallel, info.version)

    async def _sample(
        self, server: RemoteServer, request: GenerateRequest, max_tokens: int
    ) -> AsyncGenerator[Piece]:
        request_id = uuid.uuid4().hex
        prompt = self._prompts.write(request.session_id, request.prompt_ids)
        body = generation_body(request, max_tokens, request_id, prompt)
        progress, ended = Progress(), False
        try:
            async with aclosing(server.stream(GENERATE, body, self._headers(request.session_id))) as batches:
                async for batch in batches:
                    for event in server.read_all(batch, GENERATE, Event):
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

    async def _talk(self, server: RemoteServer, conversation: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        request_id = uuid.uuid4().hex
        body = conversation_body(conversation, self._options.chat_template_kwargs, request_id)
        try:
            reply = await server.post(CHAT, body, ChatReply, self._headers(conversation.session_id))
        except Refused:
            raise
        except BaseException:
            await _abort(server, request_id)
            raise
        yield conversation_piece(server, reply)

    async def _count(self, server: RemoteServer, conversation: ChatPrompt) -> int:
        body = count_body(conversation, self._options.chat_template_kwargs)
        try:
            reply = await server.post(CHAT, body, ChatReply, self._headers(conversation.session_id))
        except Refused as error:
            if (tokens := prompt_tokens_in(error.reason)) is not None:
                return tokens
            raise
        return reply.usage.prompt_tokens

    async def _decode(self, server: RemoteServer, ids: TokenIds) -> str:
        body = {"tokens": ids.tolist(), "skip_special_tokens": False}
        return (await server.post(DETOKENIZE, body, Detokenized)).text

    async def _score(self, server: RemoteServer, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        start = min(positions) - 1
        answer = await server.post(GENERATE, score_body(ids.tolist(), start), Event)
        reports = answer.meta_info.input_token_logprobs or []
        if [token_id for _, token_id, _ in reports] != ids[start:].tolist():
            raise EngineDefect(
                f"SGLang at {server.url} gave no `input_token_logprobs` of the tokens it was asked for"
            )
        return logprobs(or_missing(reports[position - start][0], MISSING) for position in positions)


async def _either(server: RemoteServer, path: str, older_path: str, kind: type[T]) -> T:
    try:
        return await server.get(path, kind)
    except Refused as error:
        if error.status != 404:
            raise
        return await server.get(older_path, kind)


async def _abort(server: RemoteServer, request_id: str) -> None:
    with suppress(EngineError, TimeoutError):  # it is also told by the closed connection
        async with asyncio.timeout(ABORT_TIMEOUT_S):
            await server.post("/abort_request", {"rid": request_id}, msgspec.Raw)


def _piece(server: RemoteServer, event: Event, progress: Progress) -> Piece:
    if event.error is not None:
        raise server.fault(GENERATE, event.error)
    meta = event.meta_info
    finish = meta.finish_reason
    if finish is not None and finish.type == "abort":
        if finish.status_code is not None:
            raise server.fault(GENERATE, {"message": finish.message, "code": finish.status_code})
        return Piece(token_ids(), logprobs(), "aborted")
    version = meta.version_at(progress.count)
    ids, values = progress.new(event)
    if finish is None:
        return Piece(token_ids(ids), logprobs(values), policy_version=version)
    reason = FINISH[finish.type]
    return Piece(token_ids(ids), logprobs(values), reason, meta.evaluated_tokens, version, meta.policy_spans)
