"""vLLM behind the token port, and in chat mode: a client of a server at its address."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal

from pydantic import BaseModel

from polar.engines.base import ChatPiece, ChatPrompt, GenerateRequest, LogprobMode, Piece
from polar.engines.remote.chat_engine import ChatOptions, ConversingRemoteEngine
from polar.engines.remote.engine import Described
from polar.engines.remote.proof import or_missing
from polar.engines.remote.server import Refused, RemoteServer
from polar.engines.vllm.chat import (
    DETOKENIZE,
    TOKENIZE,
    Counted,
    Detokenized,
    conversation_body,
    conversation_pieces,
    count_body,
)
from polar.engines.vllm.protocol import (
    COMPLETIONS,
    GENERATE,
    MISSING,
    ModelCard,
    ModelList,
    Route,
    Scores,
    ServerVersion,
    StreamedIds,
    generation_body,
    prompt_body,
    score_body,
)
from polar.errors import ConfigError, EngineDefect, EngineError
from polar.types import Logprobs, TokenIds, logprobs


class VllmOptions(ChatOptions):
    model: str | None = None
    """As the server names it; None: the one model it serves."""
    route: Literal["auto", "generate", "completions"] = "auto"
    """auto: `/inference/v1/generate` where the server offers it (`--enable-scale-out`), else `/v1/completions`."""
    logprob_mode: LogprobMode | None = None
    """None: measured at the start."""
    priority: int = 0
    """Only for servers with `--scheduling-policy priority`; lower is sooner."""


class VllmEngine(ConversingRemoteEngine):
    Options: type[BaseModel] = VllmOptions
    name = "vllm"
    counts_by_sampling = False
    product = "vLLM"
    hint = "vllm serve MODEL --enable-scale-out"
    tool_flags = "--enable-auto-tool-choice --tool-call-parser PARSER"

    def __init__(self, options: VllmOptions) -> None:
        super().__init__(options, options.logprob_mode)
        self._options = options
        self._model = ""
        self._route: Route = GENERATE

    async def _describe(self, server: RemoteServer) -> Described:
        card = await self._card(server)
        self._model = card.id
        self._route = await self._choose_route(server)
        if card.max_model_len is None:
            raise EngineDefect(f"vLLM at {server.url} does not tell `max_model_len` of {card.id}; use it directly")
        try:
            version = (await server.get("/version", ServerVersion)).version
        except Refused:  # a router may not pass it on
            version = ""
        model = card.id if card.root in (None, card.id) else f"{card.id} ({card.root})"
        return Described(model, card.max_model_len - 1, self._options.parallel, version)

    async def _card(self, server: RemoteServer) -> ModelCard:
        cards = (await server.get("/v1/models", ModelList)).data
        names = ", ".join(card.id for card in cards) or "none"
        if self._options.model is not None:
            for card in cards:
                if card.id == self._options.model:
                    return card
            raise ConfigError(f"vLLM at {server.url} has no model {self._options.model!r}; it has: {names}")
        whole = [card for card in cards if card.parent is None]  # the others are adapters of one of these
        if len(whole) != 1:
            raise ConfigError(f"vLLM at {server.url} serves {names}: choose by the engine option `model`")
        return whole[0]

    async def _choose_route(self, server: RemoteServer) -> Route:
        if self._options.route == "completions":
            return COMPLETIONS
        body = prompt_body(GENERATE, self._model, [1], {"max_tokens": 1, "temperature": 0.0})
        try:
            await server.post(GENERATE, body, Scores)
        except Refused as error:
            if error.status not in (403, 404, 405):
                raise
            if self._options.route == "generate":
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
                    reply.take(batch)
                    if reply.has_news:
                        yield reply.taken()
            end = reply.end()
        except EngineError:
            if reply.has_ids:
                yield reply.taken()  # what came before the error was sampled all the same
            raise
        yield end

    def _priority(self) -> dict[str, int]:
        return {"priority": self._options.priority} if self._options.priority else {}

    async def _talk(self, server: RemoteServer, conversation: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        body = conversation_body(self._model, conversation, self._options.chat_template_kwargs)
        headers = self._headers(conversation.session_id)
        async with aclosing(conversation_pieces(server, {**body, **self._priority()}, headers)) as pieces:
            async for heard in pieces:
                yield heard

    async def _count(self, server: RemoteServer, conversation: ChatPrompt) -> int:
        body = count_body(self._model, conversation, self._options.chat_template_kwargs)
        return (await server.post(TOKENIZE, body, Counted)).count

    async def _decode(self, server: RemoteServer, ids: TokenIds) -> str:
        body = {"model": self._model, "tokens": ids.tolist()}
        return (await server.post(DETOKENIZE, body, Detokenized)).prompt

    async def _score(self, server: RemoteServer, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        answer = await server.post(self._route, score_body(self._route, self._model, ids.tolist()), Scores)
        scores = answer.prompt_logprobs or (answer.choices[0].prompt_logprobs if answer.choices else None)
        if scores is None or len(scores) != len(ids):
            raise EngineDefect(f"vLLM at {server.url} gave no `prompt_logprobs`; use 0.10 or newer")
        values: list[float] = []
        for position in positions:
            scored = (scores[position] or {}).get(str(ids[position]))
            values.append(math.nan if scored is None else or_missing(scored.logprob, MISSING))
        return logprobs(values)
