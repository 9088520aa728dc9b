"""The scripted engine as a plug-in of processes that a test starts: writes a file with a tool, then is done."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from polar.engines.base import EngineInfo
from polar.store.weights import default_weights
from polar.testing import ScriptedEngine
from polar.tokens.renderers.gguf_vocabulary import load_vocabulary
from polar.types import Strict, TokenIds

WRITE = '<tool_call>{"name": "bash", "arguments": {"command": "echo hello > answer.txt"}}</tool_call>'


class ServiceEngine(ScriptedEngine):
    Options: type[BaseModel] = Strict

    def __init__(self, _: Any) -> None:
        super().__init__(None, self._next, strict=False)  # type: ignore[arg-type]

    def _next(self, _: int, prompt_ids: TokenIds) -> str:
        """Chosen by the content of the prompt, not by the number of requests: a session may run again here."""
        return "Done." if "echo hello" in self.encoder.decode(prompt_ids) else WRITE

    async def start(self) -> EngineInfo:
        self.encoder = load_vocabulary(await default_weights())
        return await super().start()
