"""The `vllm` engine: a client of a vLLM server, with token ids or in chat mode."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal

from pydantic import BaseModel

from polar.engines.base import ChatPiece, ChatPrompt, EngineInfo, GenerateRequest, Piece
from polar.engines.pieces import or_missing
from polar.engines.remote.chat_engine import RemoteChatEngine
from polar.engines.remote.chat_protocol import DETOKENIZE
from polar.engines.remote.engine import ModelCard, ModelList
from polar.engines.remote.server import RemoteServer, ServerRefused, StreamOptions
from polar.engines.vllm.chat import TOKENIZE, PromptCount, VllmDetokenizeReply, chat_body, chat_pieces, count_body
from polar.engines.vllm.protocol import (
    COMPLETIONS,
    GENERATE,
    MISSING,
    Route,
    ScoreReply,
    ServerVersion,
    StreamedIds,
    generation_body,
    prompt_body,
    score_body,
)
from polar.errors import ConfigError, EngineDefect, EngineError
from polar.types import Logprobs, TokenIds, logprobs


class VllmOptions(StreamOptions):
    model: str | None = None
    """The server's name of it; None: the only model it serves."""
    route: Literal["auto", "generate", "completions"] = "auto"
    """auto: `/inference/v1/generate` if the server offers it (`--enable-scale-out`), else `/v1/completions`."""
    priority: int = 0
    """Only for servers with `--scheduling-policy priority`; lower is sooner."""


class VllmEngine(RemoteChatEngine):
    Options: type[BaseModel] = VllmOptions
    name = "vllm"
    counts_by_sampling = False
    product = "vLLM"
    hint = "vllm serve MODEL --enable-scale-out"
    tool_flags = "--enable-auto-tool-choice --tool-call-parser PARSER"

    def __init__(self, options: VllmOptions) -> None:
        super().__init__(options)
        self._vllm_options = options
        self._model = ""
        self._route: Route = GENERATE

    async def _describe(self, server: RemoteServer) -> EngineInfo:
        card = await self._card(server)
        self._model = card.id
        self._route = await self._choose_route(server)
        if card.max_model_len is None:
            raise EngineDefect(f"vLLM at {server.url} does not report `max_model_len` of {card.id}; use no proxy")
        try:
            version = (await server.get("/version", ServerVersion)).version
        except ServerRefused:  # a router may not forward it
            version = ""
        model = card.id if card.root in (None, card.id) else f"{card.id} ({card.root})"
        return self._info(model, card.max_model_len, self._options.parallel, version)

    async def _card(self, server: RemoteServer) -> ModelCard:
        cards = (await server.get("/v1/models", ModelList)).data
        names = ", ".join(card.id for card in cards) or "none"
        if (model := self._vllm_options.model) is None:
            models = [card for card in cards if card.parent is None]  # the others are adapters
            if len(models) != 1:
                raise ConfigError(
                    f"vLLM at {server.url} serves {names}: choose one with the engine option `model`"
                )
            return models[0]
        for card in cards:
            if card.id == model:
                return card
        raise ConfigError(f"vLLM at {server.url} has no model {model!r}; it has: {names}")

    async def _choose_route(self, server: RemoteServer) -> Route:
        if self._vllm_options.route == "completions":
            return COMPLETIONS
        body = prompt_body(GENERATE, self._model, [1], {"max_tokens": 1, "temperature": 0.0})
        try:
            await server.post(GENERATE, body, ScoreReply)
        except ServerRefused as error:
            if error.status not in (403, 404, 405):
                raise
            if self._vllm_options.route == "generate":
                raise EngineError(
                    f"vLLM at {server.url} does not offer {GENERATE}: start it with --enable-scale-out, or leave "
                    "out the engine option `route`"
                ) from error
            return COMPLETIONS
        return GENERATE

    async def _sample(
        self, server: RemoteServer, request: GenerateRequest, max_tokens: int
    ) -> AsyncGenerator[Piece]:
        prompt = self._prompts.write(request.session_id, request.prompt_ids)
        body = generation_body(self._route, self._model, request, max_tokens, prompt)
        reply, headers = StreamedIds(server, self._route), self._headers(request.session_id)
        try:
            async with aclosing(server.stream(self._route, {**body, **self._priority()}, headers)) as batches:
                async for batch in batches:
                    reply.add(batch)
                    if reply.ids and not reply.ended:
                        yield reply.piece()
            end = reply.end()
        except EngineError:
            if reply.ids:
                yield reply.piece()  # the ids that came before the error count
            raise
        yield end

    def _priority(self) -> dict[str, int]:
        return {"priority": self._vllm_options.priority} if self._vllm_options.priority else {}

    def _chat(self, server: RemoteServer, prompt: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        body = chat_body(self._model, prompt, self._options.chat_template_kwargs)
        return chat_pieces(server, {**body, **self._priority()}, self._headers(prompt.session_id))

    async def _count(self, server: RemoteServer, prompt: ChatPrompt) -> int:
        body = count_body(self._model, prompt, self._options.chat_template_kwargs)
        return (await server.post(TOKENIZE, body, PromptCount)).count

    async def _decode(self, server: RemoteServer, ids: TokenIds) -> str:
        body = {"model": self._model, "tokens": ids.tolist()}
        return (await server.post(DETOKENIZE, body, VllmDetokenizeReply)).prompt

    async def _score(self, server: RemoteServer, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        answer = await server.post(self._route, score_body(self._route, self._model, ids.tolist()), ScoreReply)
        scores = answer.prompt_logprobs or (answer.choices[0].prompt_logprobs if answer.choices else None)
        if scores is None or len(scores) != len(ids):
            raise EngineDefect(f"vLLM at {server.url} gave no `prompt_logprobs`; use 0.10 or newer")
        values: list[float] = []
        for position in positions:
            scored = (scores[position] or {}).get(str(ids[position]))
            values.append(math.nan if scored is None else or_missing(scored.logprob, MISSING))
        return logprobs(values)
