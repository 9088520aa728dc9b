"""vLLM behind the token port: a client of a server at its address."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal

from pydantic import BaseModel

from polar.engines.base import GenerateRequest, LogprobMode, Piece
from polar.engines.remote import Refused, RemoteServer, StreamOptions
from polar.engines.remote_engine import Described, RemoteEngine
from polar.engines.remote_proof import or_missing, version_of
from polar.engines.vllm_wire import (
    COMPLETIONS,
    GENERATE,
    MISSING,
    Choice,
    Event,
    ModelCard,
    ModelList,
    Route,
    Scores,
    ServerVersion,
    Usage,
    generation_body,
    paired,
    prompt_body,
    score_body,
)
from polar.errors import ConfigError, EngineDefect, EngineError
from polar.types import Logprobs, TokenIds, logprobs, token_ids

FINISH: dict[str, Literal["stop", "length", "aborted"]] = {"stop": "stop", "length": "length"}


class VllmOptions(StreamOptions):
    model: str | None = None
    """As the server names it; None: the one model it serves."""
    route: Literal["auto", "generate", "completions"] = "auto"
    """auto: `/inference/v1/generate` where the server offers it (`--enable-scale-out`), else `/v1/completions`."""
    logprob_mode: LogprobMode | None = None
    """None: measured at the start."""
    priority: int = 0
    """Only for servers with `--scheduling-policy priority`; lower is sooner."""


class VllmEngine(RemoteEngine):
    Options: type[BaseModel] = VllmOptions
    name = "vllm"
    product = "vLLM"
    hint = "vllm serve MODEL --enable-scale-out"

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
        body = generation_body(self._route, self._model, request, max_tokens)
        if self._options.priority:
            body["priority"] = self._options.priority
        last: Choice | None = None
        usage: Usage | None = None
        async with aclosing(server.stream(self._route, body, self._headers(request))) as events:
            async for data in events:
                event = server.read(data, self._route, Event)
                if event.error is not None:
                    raise server.fault(self._route, event.error)
                usage = event.usage or usage
                for choice in event.choices:
                    if choice.finish_reason is not None:
                        last = choice  # what it cost is told after it
                    elif choice.token_ids:
                        ids, values = paired(choice)
                        yield Piece(token_ids(ids), logprobs(values))
        if last is None:
            raise EngineError(f"vLLM at {server.url} ended a reply without a reason; see the server's log")
        yield _last_piece(last, usage)

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


def _last_piece(choice: Choice, usage: Usage | None) -> Piece:
    ids, values = paired(choice)
    details = usage.prompt_tokens_details if usage else None
    cached = details.cached_tokens if details else None
    return Piece(
        ids=token_ids(ids),
        logprobs=logprobs(values),
        finish_reason=FINISH.get(choice.finish_reason or "", "aborted"),
        evaluated_tokens=None if usage is None or cached is None else usage.prompt_tokens - cached,
        policy_version=version_of(choice.weight_versions),
    )
