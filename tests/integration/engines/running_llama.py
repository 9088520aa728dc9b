"""What the fixtures of this folder hand to its tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from polar.engines.base import EngineInfo
from polar.engines.embedded.engine import EmbeddedEngine
from polar.engines.embedded.process import EmbeddedProcess

Connect = Callable[..., Awaitable[Any]]
CONTEXT_TOKENS = 768
"""Small, so that filling it takes seconds; what is tested holds for any size."""


class Started(NamedTuple):
    engine: EmbeddedEngine
    info: EngineInfo


class LlamaServer(NamedTuple):
    """A llama.cpp server as an operator would run it, with nothing of the embedded engine around it."""

    address: str
    api_key: str
    process: EmbeddedProcess
