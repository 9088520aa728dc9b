"""A gateway in chat mode, and an engine for it that lays prompts out with the model's own template."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from playbook import Gateway

from polar.config import GatewayConfig
from polar.engines.base import ChatPiece, ChatPrompt, EngineInfo, GenerateRequest, Piece
from polar.errors import ChatRefused, ContextOverflow, EngineError
from polar.gateway.calls.call_service import CallService
from polar.gateway.calls.chat_mode import ChatMode
from polar.gateway.calls.policy_gate import PolicyGate
from polar.gateway.calls.threads import CallThreads
from polar.gateway.http.handler import Service
from polar.gateway.http.routes import gateway_app
from polar.gateway.http.server import GatewayServer
from polar.gateway.slots import SlotTable
from polar.store.journal import Journal
from polar.testing import Script, ScriptedEngine
from polar.tokens.base import Renderer
from polar.tokens.replies.reply_text import deltas_of
from polar.types import TokenIds, logprobs, token_ids


class ScriptedChatEngine(ScriptedEngine):
    """Renders every conversation anew. Says nothing of a reply before it is whole, and then all of it."""

    counts_by_sampling = False

    def __init__(self, renderer: Renderer, vocabulary: Any, script: Script, info: EngineInfo) -> None:
        super().__init__(vocabulary, script, strict=False, info=info)
        self.renderer = renderer
        self.context_tokens = info.context_tokens
        self.prompts: list[ChatPrompt] = []
        self.hides_prompts = False
        self.refuses = ""
        self.mute = False
        self.counted = 0

    async def count(self, prompt: ChatPrompt) -> int:
        self.counted += 1
        return len(self._rendered(prompt))

    async def decode(self, ids: TokenIds) -> str:
        if self.mute:
            raise EngineError("no such route")
        return self.renderer.decode(ids)

    async def chat(self, prompt: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        self.prompts.append(prompt)
        prompt_ids = self._rendered(prompt)
        room = self.context_tokens - len(prompt_ids)
        if room < 1:
            raise ContextOverflow(len(prompt_ids), self.context_tokens)
        request = GenerateRequest(
            prompt_ids=prompt_ids,
            max_tokens=min(room, prompt.max_tokens or room),
            sampling=prompt.sampling,
            stop_ids=self.renderer.stop_ids,
            session_id=prompt.session_id,
            seed=prompt.seed,
        )
        yield ChatPiece(Piece(token_ids(), logprobs()), prompt_ids=None if self.hides_prompts else prompt_ids)
        ids = token_ids()
        async for piece in self.generate(request):
            ids.extend(piece.ids)
            said = deltas_of(self.renderer.parse(prompt_ids, ids)) if piece.finish_reason else ()
            yield ChatPiece(piece, tuple(said))

    def _rendered(self, prompt: ChatPrompt) -> TokenIds:
        if self.refuses:
            raise ChatRefused(self.refuses)
        return self.renderer.render(prompt.messages, prompt.tools)


async def chatting_gateway(stack: AsyncExitStack, folder: Path, engine: ScriptedChatEngine) -> Gateway:
    """A gateway in chat mode that listens until the stack is closed."""
    settings = GatewayConfig(heartbeat_s=30.0)
    journal = await stack.enter_async_context(await Journal.open(folder / "journal.db"))
    slots, gate, info = SlotTable(journal, "polar", engine.context_tokens), PolicyGate(), await engine.start()
    service = CallService(ChatMode(engine, gate), gate, info, journal, "polar")
    server = GatewayServer(gateway_app(Service(slots, service, settings, CallThreads())), settings)
    slots.base_url = server.base_url
    await server.start()
    stack.push_async_callback(server.stop)
    http = await stack.enter_async_context(aiohttp.ClientSession())
    return Gateway(slots, journal, engine, http, stack, gate, service, engine.renderer)
