"""llama-server over HTTP: one call, its typed answer, and errors that name the fix."""

from __future__ import annotations

from typing import Any, TypeVar

import aiohttp
import msgspec
import orjson

from polar.engines.llamacpp.protocol import Answer, Timings
from polar.errors import ContextOverflow, EngineDefect, EngineError, SchemaRefused

CONNECT_TIMEOUT_S = 10.0
SCHEMA_WORDS = ("schema", "grammar")
"""llama.cpp makes a grammar of a schema, and names one or the other in its refusal."""

T = TypeVar("T")


class GenerationSettings(msgspec.Struct, frozen=True):
    n_ctx: int
    """Tokens of one sequence."""


class ServerProperties(msgspec.Struct, frozen=True):
    total_slots: int
    default_generation_settings: GenerationSettings
    model_path: str = ""
    build_info: str = ""


class Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


class Evaluated(msgspec.Struct, frozen=True):
    timings: Timings


class StateSaved(msgspec.Struct, frozen=True):
    n_written: int
    """Bytes."""


class StateRestored(msgspec.Struct, frozen=True):
    n_restored: int
    """Tokens."""


class ServerFault(msgspec.Struct, frozen=True):
    message: str = ""
    type: str = ""
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class Refusal(msgspec.Struct, frozen=True):
    error: ServerFault = ServerFault()


class LlamaServer:
    """One llama-server at its address."""

    def __init__(self, base_url: str, api_key: str = "") -> None:
        self.base_url = base_url.rstrip("/")
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            # The server drops idle connections after seconds; one caught in that moment would lose its call.
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
        )

    async def close(self) -> None:
        await self._http.close()

    async def properties(self) -> ServerProperties:
        return await self._call("GET", "/props", None, ServerProperties)

    async def tokenize(self, text: str) -> list[int]:
        """The server's own ids of content; text that spells a control token stays text."""
        body = {"content": text, "add_special": False, "parse_special": False}
        return (await self._call("POST", "/tokenize", body, Tokens)).tokens

    async def complete(self, body: dict[str, Any]) -> Answer:
        answer = await self._call("POST", "/completion", body, Answer)
        if len(answer.tokens) != answer.tokens_predicted:
            raise EngineDefect(
                f"llama.cpp sampled {answer.tokens_predicted} tokens and returned {len(answer.tokens)} ids; "
                "use a server that knows return_tokens"
            )
        return answer

    async def evaluate(self, prompt_ids: list[int], sequence: int) -> Timings:
        """Evaluates a prompt into a sequence's cache and samples nothing."""
        body = {"prompt": prompt_ids, "n_predict": 0, "id_slot": sequence, "cache_prompt": True, "stream": False}
        return (await self._call("POST", "/completion", body, Evaluated)).timings

    async def save_state(self, sequence: int, filename: str) -> int:
        """Bytes written to the server's own folder of states. A server that was started without one refuses."""
        body = {"filename": filename}
        saved = await self._call("POST", f"/slots/{sequence}?action=save", body, StateSaved)
        if saved.n_written == 0:
            raise EngineError(f"llama.cpp saved nothing of sequence {sequence}; see that its disk has room")
        return saved.n_written

    async def restore_state(self, sequence: int, filename: str) -> int:
        """Tokens that the sequence holds afterwards."""
        body = {"filename": filename}
        return (await self._call("POST", f"/slots/{sequence}?action=restore", body, StateRestored)).n_restored

    async def _call(self, method: str, path: str, body: dict[str, Any] | None, kind: type[T]) -> T:
        data = None if body is None else orjson.dumps(body)
        try:
            async with self._http.request(method, self.base_url + path, data=data) as response:
                payload = await response.read()
        except (aiohttp.ClientError, RuntimeError) as error:  # RuntimeError: the client is closed
            raise EngineError(
                f"no connection to llama.cpp at {self.base_url}: {error or type(error).__name__}; "
                "see that the server runs, and its log"
            ) from error
        if response.status != 200:
            raise _refusal(response.status, payload)
        try:
            return msgspec.json.decode(payload, type=kind)
        except msgspec.MsgspecError as error:
            raise EngineDefect(f"llama.cpp answered {path} in another shape: {error}") from error


def _refusal(status: int, payload: bytes) -> Exception:
    try:
        fault = msgspec.json.decode(payload, type=Refusal).error
    except msgspec.MsgspecError:
        fault = ServerFault(message=payload[:200].decode(errors="replace"))
    if fault.type == "exceed_context_size_error":
        return ContextOverflow(fault.n_prompt_tokens, fault.n_ctx)
    if status == 400 and any(word in fault.message.lower() for word in SCHEMA_WORDS):
        return SchemaRefused(f"llama.cpp refused the json_schema: {fault.message}")
    advice = "check the API key" if status == 401 else "see the server's log"
    return EngineError(f"llama.cpp answered {status}: {fault.message or 'no reason given'}; {advice}")
