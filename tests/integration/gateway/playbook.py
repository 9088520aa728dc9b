"""A gateway under test, and what its playbooks check."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from openai import AsyncOpenAI

from polar.config import GatewayConfig
from polar.engines.base import EngineInfo
from polar.gateway.calls.call_service import CallService
from polar.gateway.calls.policy_gate import PolicyGate
from polar.gateway.calls.threads import CallThreads
from polar.gateway.calls.token_mode import TokenMode
from polar.gateway.http.handler import Service
from polar.gateway.http.routes import gateway_app
from polar.gateway.http.server import GatewayServer
from polar.gateway.slots import SlotTable
from polar.store.journal import Journal
from polar.testing import Script, ScriptedEngine
from polar.types import Call, CallProfile, Lease, Session, SessionSockets, Slot, TaskRequest, TokenIds, token_ids

BASH_TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {
            "type": "object",
            "required": ["command"],
            "properties": {"command": {"type": "string"}},
        },
    },
}


@dataclass
class Gateway:
    slots: SlotTable
    journal: Journal
    engine: ScriptedEngine
    http: aiohttp.ClientSession
    stack: AsyncExitStack
    gate: PolicyGate
    calls_served: CallService
    renderer: Any

    async def open(
        self,
        session_id: str = "s1",
        profile: CallProfile | None = None,
        listener: socket.socket | None = None,
        https: tuple[socket.socket, ssl.SSLContext] | None = None,
        **task: Any,
    ) -> Slot:
        lease = Lease(
            session=Session(session_id=session_id, task_id="t", index=0),
            task=TaskRequest.model_validate({"instruction": "go", **task}),
        )
        await self.journal.add_session(lease)
        return await self.slots.open(lease, profile or CallProfile(), SessionSockets(listener, https))

    def client(self, slot: Slot, **options: Any) -> AsyncOpenAI:
        """The official SDK, pointed at the slot."""
        client = AsyncOpenAI(base_url=f"{slot.base_url}/v1", api_key=slot.key, **options)
        self.stack.push_async_callback(client.close)
        return client

    async def post(self, slot: Slot, body: Any, path: str = "/v1/chat/completions") -> tuple[int, Any, Any]:
        headers = {"authorization": f"Bearer {slot.key}"}
        data = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.http.post(slot.base_url + path, headers=headers, **data) as response:
            return response.status, await response.json(), response.headers

    async def calls(self, session_id: str = "s1") -> list[Call]:
        return await self.journal.calls(session_id)


OpenGateway = Callable[..., Awaitable[Gateway]]


async def running_gateway(
    stack: AsyncExitStack,
    renderer: Any,
    folder: Path,
    script: Script,
    *,
    context_tokens: int = 8192,
    vocabulary: Any = None,
    **config: Any,
) -> Gateway:
    """A gateway that listens until the stack is closed."""
    info = EngineInfo("scripted", "script", context_tokens, "raw", parallel=8, constrains=True)
    engine = ScriptedEngine(vocabulary or vocabulary_of(renderer), script, info=info)
    settings = GatewayConfig.model_validate({"heartbeat_s": 30.0, **config})
    journal = await stack.enter_async_context(await Journal.open(folder / "journal.db"))
    slots = SlotTable(journal, "polar", context_tokens)
    gate, started = PolicyGate(), await engine.start()
    service = CallService(TokenMode(renderer, engine, started), gate, started, journal, "polar")
    server = GatewayServer(gateway_app(Service(slots, service, settings, CallThreads())), settings)
    slots.base_url, slots.listeners = server.base_url, server.listeners
    await server.start()
    stack.push_async_callback(server.stop)
    http = await stack.enter_async_context(aiohttp.ClientSession())
    return Gateway(slots, journal, engine, http, stack, gate, service, renderer)


def vocabulary_of(renderer: Any) -> Any:
    return renderer._vocabulary


def assert_tokens_hold_together(calls: Sequence[Call], engine: ScriptedEngine) -> None:
    """What the journal holds is, put together, what the engine was sent and what it sampled."""
    whole: dict[str | None, TokenIds] = {}
    for call, seen in zip(calls, engine.requests, strict=True):
        before = whole[call.parent_id] if call.continues else token_ids()
        prompt = before + call.new_prompt_ids
        assert prompt == seen.request.prompt_ids
        assert call.completion_ids.tolist() == seen.completion_ids
        whole[call.call_id] = prompt + call.completion_ids
