"""The engine `endpoint`: a model that somebody serves over OpenAI's or Anthropic's API, without token ids.

It is a `TextEngine`: its port has no place for ids or logprobs, so its sessions are run, judged and counted, and
never trained on. A busy or failing endpoint is asked again with growing pauses before a harness hears of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Literal, Protocol

import msgspec
from pydantic import BaseModel, Field

from polar.back_off import BackOff
from polar.engines.base import ChatPrompt, EngineInfo, GenerateRequest, Piece, TextPiece
from polar.engines.endpoint.anthropic_api import AnthropicApi
from polar.engines.endpoint.connection import BUSY, EndpointConnection, EndpointRefused
from polar.engines.endpoint.openai_api import OpenAIApi
from polar.engines.remote.server import RemoteOptions
from polar.errors import EngineError
from polar.types import Message, Sampling

COUNTERS = ("calls", "retries", "prompt_tokens", "completion_tokens")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


class EndpointOptions(RemoteOptions):
    model: str = Field(min_length=1)
    """The endpoint's name of it."""
    api: Literal["openai", "anthropic"] = "openai"
    path: str | None = None
    """Of the route that takes the requests, behind `url`. None: `/v1/chat/completions` or `/v1/messages`."""
    context_tokens: int = Field(default=131_072, ge=2)
    """What harnesses are told the model holds."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    """The most an endpoint allows for one reply; harnesses may ask for more than that."""
    limit_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    """OpenAI's name for the limit of a reply. Older servers know only `max_tokens`."""
    body: dict[str, Any] = {}
    """Further fields of every request, such as `{ reasoning_effort = "low" }`."""
    silence_timeout_s: float = Field(default=600.0, gt=0)
    """How long a stream may send nothing before the call fails."""
    retry_s: float = Field(default=300.0, ge=0)
    """How long a call waits for an endpoint that is busy, fails or cannot be reached."""


class TextReader(Protocol):
    """Reads one streamed reply."""

    def feed(self, data: bytes) -> TextPiece | None: ...

    def end(self) -> TextPiece: ...


class EndpointApi(Protocol):
    """A maker's format of requests and replies."""

    path: str
    constrains: bool

    def headers(self, key: str) -> dict[str, str]: ...

    def body(self, model: str, prompt: ChatPrompt) -> dict[str, Any]: ...

    def reader(self, connection: EndpointConnection) -> TextReader: ...


API_OF: dict[str, Callable[[EndpointOptions], EndpointApi]] = {
    "openai": lambda options: OpenAIApi(options.limit_field),
    "anthropic": lambda _: AnthropicApi(),
}


class EndpointEngine:
    Options: type[BaseModel] = EndpointOptions

    def __init__(self, options: EndpointOptions) -> None:
        self._options = options
        self._api = API_OF[options.api](options)
        self._connection: EndpointConnection | None = None
        self._counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))

    async def start(self) -> EngineInfo:
        """Asks for the beginning of one short reply: a wrong key, model or address is found here."""
        if self._connection is not None:
            raise EngineError("the endpoint engine is already started; stop it first")
        options, key = self._options, self._options.api_key()
        url = options.url + (options.path if options.path is not None else self._api.path)
        self._connection = EndpointConnection(url, self._api.headers(key), key, options.silence_timeout_s)
        try:
            async with asyncio.timeout(options.start_timeout_s):
                await self._probe()
        except TimeoutError as error:
            await self.stop()
            raise EngineError(f"the endpoint {url} has not answered in {options.start_timeout_s:g} s") from error
        except BaseException:
            await self.stop()
            raise
        return EngineInfo(
            name="endpoint",
            model=f"{options.model} at {options.url}",
            context_tokens=options.context_tokens,
            logprob_mode="none",
            parallel=1,
            constrains=self._api.constrains,
        )

    async def _probe(self) -> None:
        messages = (Message(role="user", content="Say hi."),)
        prompt = ChatPrompt(messages, (), Sampling(), (), "start-up")
        async with aclosing(self._retried(prompt, unreachable=False)) as pieces:
            async for _ in pieces:
                return  # the first words are enough; leaving ends the reply

    async def stop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def counters(self) -> dict[str, Any]:
        return dict(self._counters)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        raise EngineError("an endpoint takes messages and gives no token ids; train with another engine")
        yield  # the port wants a generator

    async def text(self, prompt: ChatPrompt) -> AsyncGenerator[TextPiece]:
        self._counters["calls"] += 1
        try:
            async with aclosing(self._retried(prompt)) as pieces:
                async for piece in pieces:
                    self._count(piece)
                    yield piece
        except EndpointRefused as error:
            raise error.explained(
                self._options.context_tokens, with_schema=prompt.json_schema is not None
            ) from error

    def _count(self, piece: TextPiece) -> None:
        if piece.usage is not None:
            self._counters["prompt_tokens"] += piece.usage.prompt_tokens or 0
            self._counters["completion_tokens"] += piece.usage.completion_tokens or 0

    async def _retried(self, prompt: ChatPrompt, *, unreachable: bool = True) -> AsyncGenerator[TextPiece]:
        """The reply; asks again as long as nothing of it has come. `unreachable`: also if there is no connection,
        or if the endpoint fails without being busy."""
        loop, back_off = asyncio.get_running_loop(), BackOff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        deadline = loop.time() + self._options.retry_s
        while True:
            begun = False
            try:
                async with aclosing(self._asked(prompt)) as pieces:
                    async for piece in pieces:
                        begun = True
                        yield piece
                return
            except EndpointRefused as error:
                worth_it = error.temporary and (unreachable or error.status in BUSY)
                pause_s = max(error.retry_after_s or 0.0, back_off.next_s())
                if begun or not worth_it or loop.time() + pause_s > deadline:
                    raise
            self._counters["retries"] += 1
            await asyncio.sleep(pause_s)

    async def _asked(self, prompt: ChatPrompt) -> AsyncGenerator[TextPiece]:
        """One request and its reply."""
        connection = self._connection
        if connection is None:
            raise EngineError("the endpoint engine is not running; start it first")
        options = self._options
        limits = [limit for limit in (prompt.max_tokens, options.max_output_tokens) if limit is not None]
        limited = msgspec.structs.replace(prompt, max_tokens=min(limits, default=None))
        reader = self._api.reader(connection)
        async with aclosing(connection.events(self._api.body(options.model, limited) | options.body)) as events:
            async for data in events:
                piece = reader.feed(data)
                if piece is not None:
                    yield piece
        yield reader.end()
