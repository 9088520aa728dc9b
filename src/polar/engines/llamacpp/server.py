"""The HTTP routes of llama-server, with typed replies."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from polar.engines.llamacpp.protocol import CompletionReply, Timings
from polar.engines.remote.engine import TokenizeReply
from polar.engines.remote.server import RemoteServer, bearer
from polar.errors import ContextOverflow, EngineDefect, EngineError, SchemaRefused

SCHEMA_WORDS = ("schema", "grammar")
"""llama.cpp turns a schema into a grammar, and names one or the other when it refuses it."""


class GenerationSettings(msgspec.Struct, frozen=True):
    n_ctx: int
    """Tokens of one sequence."""


class ServerProperties(msgspec.Struct, frozen=True):
    total_slots: int
    default_generation_settings: GenerationSettings
    model_path: str = ""
    build_info: str = ""


class SaveReply(msgspec.Struct, frozen=True):
    n_written: int
    """Bytes."""


class LlamaError(msgspec.Struct, frozen=True):
    message: str = ""
    type: str = ""
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class LlamaErrorReply(msgspec.Struct, frozen=True):
    error: LlamaError = LlamaError()


class LlamaServer(RemoteServer):
    def __init__(self, url: str, api_key: str = "") -> None:
        # The server drops idle connections after seconds, so none is reused. A reply may take any time, and
        # nothing arrives before its end, so there is no limit on silence.
        headers = {**bearer(api_key), "Connection": "close"}
        super().__init__("llama.cpp", "llama-server -m MODEL.gguf", url.rstrip("/"), headers, math.inf)

    async def properties(self) -> ServerProperties:
        return await self.get("/props", ServerProperties)

    async def tokenize(self, text: str) -> list[int]:
        """The ids of plain text: control tokens that the text spells are not recognised."""
        body = {"content": text, "add_special": False, "parse_special": False}
        return (await self.post("/tokenize", body, TokenizeReply)).tokens

    async def complete(self, body: dict[str, Any]) -> CompletionReply:
        reply = await self.post("/completion", body, CompletionReply)
        if len(reply.tokens) != reply.tokens_predicted:
            raise EngineDefect(
                f"llama.cpp sampled {reply.tokens_predicted} tokens and returned {len(reply.tokens)} ids; "
                "use a server that supports return_tokens"
            )
        return reply

    async def evaluate(self, prompt_ids: list[int], sequence: int) -> Timings:
        """Evaluates a prompt into a sequence's cache, without sampling."""
        body = {"prompt": prompt_ids, "n_predict": 0, "id_slot": sequence, "cache_prompt": True, "stream": False}
        return (await self.post("/completion", body, CompletionReply)).timings

    async def save_state(self, sequence: int, filename: str) -> int:
        """Writes a sequence's state to the server's state folder; returns its bytes. Servers without one
        refuse."""
        saved = await self.post(f"/slots/{sequence}?action=save", {"filename": filename}, SaveReply)
        if saved.n_written == 0:
            raise EngineError(f"llama.cpp saved nothing of sequence {sequence}; check that its disk has room")
        return saved.n_written

    async def restore_state(self, sequence: int, filename: str) -> None:
        await self.post(f"/slots/{sequence}?action=restore", {"filename": filename}, msgspec.Raw)

    def _refusal(self, path: str, status: int, payload: bytes, retry_after: str | None) -> EngineError:
        try:
            error = msgspec.json.decode(payload, type=LlamaErrorReply).error
        except msgspec.MsgspecError:
            error = LlamaError()
        if error.type == "exceed_context_size_error":
            return ContextOverflow(error.n_prompt_tokens, error.n_ctx)
        if status == 400 and any(word in error.message.lower() for word in SCHEMA_WORDS):
            return SchemaRefused(f"llama.cpp refused the json_schema: {error.message}")
        return super()._refusal(path, status, payload, retry_after)
