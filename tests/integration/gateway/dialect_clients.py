"""A conversation in the JSON of each dialect, for tests that all dialects must pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from playbook import Gateway

from polar.types import Slot


@dataclass(frozen=True)
class DialectClient:
    name: str
    path: str
    stream_path: str

    def __str__(self) -> str:
        return self.name

    def body(self, turns: list[str], *, stream: bool = False, **more: Any) -> dict[str, Any]:
        """A request whose turns are the user's and the model's in alternation."""
        body = getattr(self, f"_{self.name}")(turns)
        if stream and self.name != "google":
            body["stream"] = True
        return {**body, **more}

    def _anthropic(self, turns: list[str]) -> dict[str, Any]:
        return {"max_tokens": 64, **self._openai_chat(turns)}

    def _openai_chat(self, turns: list[str]) -> dict[str, Any]:
        roles = ("user", "assistant")
        return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]}

    def _openai_responses(self, turns: list[str]) -> dict[str, Any]:
        return {"input": self._openai_chat(turns)["messages"]}

    def _google(self, turns: list[str]) -> dict[str, Any]:
        roles = ("user", "model")
        return {"contents": [{"role": roles[i % 2], "parts": [{"text": text}]} for i, text in enumerate(turns)]}

    async def ask(self, gateway: Gateway, slot: Slot, body: Any, *, stream: bool = False) -> tuple[int, bytes]:
        path = self.stream_path if stream else self.path
        headers = {"authorization": f"Bearer {slot.key}", "content-type": "application/json"}
        data: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with gateway.http.post(slot.base_url + path, headers=headers, **data) as response:
            return response.status, await response.read()


_GOOGLE = "/v1beta/models/polar"
DIALECT_CLIENTS = (
    DialectClient("anthropic", "/v1/messages", "/v1/messages"),
    DialectClient("openai_chat", "/v1/chat/completions", "/v1/chat/completions"),
    DialectClient("openai_responses", "/v1/responses", "/v1/responses"),
    DialectClient("google", f"{_GOOGLE}:generateContent", f"{_GOOGLE}:streamGenerateContent?alt=sse"),
)
