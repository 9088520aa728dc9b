"""Which part of the gateway spends the processor: times functions from outside, so the product carries no clock.

A part's time is processor time of the thread it runs in, without the parts inside it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from time import thread_time_ns
from typing import Any

from polar.gateway.dialects.openai_chat import OpenAIChat
from polar.gateway.dialects.openai_chat.stream import ChatStream
from polar.gateway.speech import Speech
from polar.store.writer import Writer
from polar.tokens.forest import CallForest
from polar.tokens.prompting import Prompting
from polar.tokens.smollm2 import SmolLM2Renderer

PARTS: dict[str, list[tuple[type[Any], str]]] = {
    "parse": [(OpenAIChat, "parse")],
    "match": [
        *((CallForest, name) for name in ("find", "add", "shared_items")),
        *((Prompting, name) for name in ("bridge", "render")),
    ],
    "bridge": [(SmolLM2Renderer, "render"), (SmolLM2Renderer, "bridge")],
    "read reply": [(Speech, "feed"), (Speech, "finish")],
    "store": [(Writer, "_transaction")],
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
        for name in ("render", "bridge"):
            setattr(SmolLM2Renderer, name, self._counted(getattr(SmolLM2Renderer, name)))

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            outside = getattr(self._inside, "ns", 0)
            self._inside.ns = 0
            begun = thread_time_ns()
            try:
                return function(*arguments, **options)
            finally:
                whole = thread_time_ns() - begun
                self.spent_ns[part] += whole - self._inside.ns
                self._inside.ns = outside + whole

        return timed

    def _counted(self, render: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            ids = render(*arguments)
            self.rendered_tokens += len(ids)
            return ids

        return counted
