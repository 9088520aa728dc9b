"""Which part of the gateway spends the processor: times functions from outside, so the product carries no clock.

A part's time is processor time of the thread it runs in, without the parts inside it. The engine leg is what runs
between the gateway asking for a piece and getting it, and the reading of the engine's socket.
"""

from __future__ import annotations

import threading
import types
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import thread_time_ns
from typing import Any

from polar.engines.remote.http_client import HttpConnection
from polar.engines.vllm.engine import VllmEngine
from polar.gateway.calls.token_mode import ReplyDecoder
from polar.gateway.dialects.openai_chat import OpenAIChat
from polar.gateway.dialects.openai_chat.stream import ChatStream
from polar.store.writer import DatabaseWriter
from polar.tokens.forest import CallForest, PromptBuilder
from polar.tokens.renderers.smollm2 import SmolLM2Renderer

PARTS: dict[str, list[tuple[type[Any], str]]] = {
    "parse": [(OpenAIChat, "parse")],
    "match": [
        *((CallForest, name) for name in ("find", "add", "shared_items")),
        *((PromptBuilder, name) for name in ("bridge", "render")),
    ],
    "bridge": [(SmolLM2Renderer, "render"), (SmolLM2Renderer, "bridge")],
    "read reply": [(ReplyDecoder, "feed"), (ReplyDecoder, "finish")],
    "store": [(DatabaseWriter, "_transaction")],
    "engine leg": [(HttpConnection, "data_received")],
    "encode": [
        *((OpenAIChat, name) for name in ("reply", "encoder")),
        *((ChatStream, name) for name in ("start", "delta", "end")),
    ],
}


class PartClock:
    def __init__(self) -> None:
        self.spent_ns: Counter[str] = Counter()
        self.rendered_tokens = 0
        self._inside = threading.local()

    def attach(self) -> None:
        """To the classes of this process, which serves for nothing else."""
        for part, functions in PARTS.items():
            for owner, name in functions:
                setattr(owner, name, self._timed(getattr(owner, name), part))
        VllmEngine.generate = self._timed_pieces(VllmEngine.generate, "engine leg")
        for name in ("render", "bridge"):
            setattr(SmolLM2Renderer, name, self._counted(getattr(SmolLM2Renderer, name)))

    @contextmanager
    def _inside_of(self, part: str) -> Generator[None]:
        outside = getattr(self._inside, "ns", 0)
        self._inside.ns = 0
        begun = thread_time_ns()
        try:
            yield
        finally:
            whole = thread_time_ns() - begun
            self.spent_ns[part] += whole - self._inside.ns
            self._inside.ns = outside + whole

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            with self._inside_of(part):
                return function(*arguments, **options)

        return timed

    def _timed_pieces(self, generate: Callable[..., Any], part: str) -> Callable[..., Any]:
        async def timed(*arguments: Any) -> Any:
            pieces = generate(*arguments)
            try:
                while True:
                    yield await self._stepped(pieces.__anext__(), part)
            except StopAsyncIteration:
                return
            finally:
                await pieces.aclose()

        return timed

    @types.coroutine
    def _stepped(self, awaitable: Any, part: str) -> Generator[Any, Any, Any]:
        """Awaits, and counts only the steps: while it waits, others run on the same thread."""
        steps, send = awaitable.__await__(), lambda: steps.send(None)
        while True:
            try:
                with self._inside_of(part):
                    waited_for = send()
            except StopIteration as end:
                return end.value
            try:
                value = yield waited_for
                send = lambda value=value: steps.send(value)  # noqa: E731
            except BaseException as error:
                send = lambda error=error: steps.throw(error)  # noqa: E731

    def _counted(self, render: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            ids = render(*arguments)
            self.rendered_tokens += len(ids)
            return ids

        return counted
