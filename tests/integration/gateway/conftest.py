"""A gateway on a real socket, with the real vocabulary, a real journal and a scripted engine behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playbook import Gateway, OpenGateway

from polar.config import GatewayConfig
from polar.engines.base import EngineInfo
from polar.gateway.app import GatewayServer, make_app
from polar.gateway.exchange import Exchange
from polar.gateway.slots import SlotTable
from polar.store.journal import Journal
from polar.testing import Script, ScriptedEngine
from polar.tokens.smollm2 import SmolLM2Renderer


@pytest.fixture
async def open_gateway(smollm2: SmolLM2Renderer, tmp_path: Path) -> AsyncGenerator[OpenGateway]:
    async with AsyncExitStack() as stack:

        async def open_one(script: Script, context_tokens: int = 8192, **config: Any) -> Gateway:
            vocabulary = smollm2._vocabulary  # pyright: ignore[reportPrivateUsage]
            info = EngineInfo("scripted", "script", context_tokens, "raw", parallel=8)
            engine = ScriptedEngine(vocabulary, script, info=info)
            settings = GatewayConfig.model_validate({"heartbeat_s": 30.0, **config})
            journal = await stack.enter_async_context(await Journal.open(tmp_path / "journal.db"))
            slots = SlotTable(smollm2, journal, "polar", context_tokens)
            exchange = Exchange(smollm2, engine, await engine.start(), journal, "polar")
            server = GatewayServer(make_app(slots, exchange, settings), settings)
            slots.base_url = server.base_url
            await server.start()
            stack.push_async_callback(server.stop)
            http = await stack.enter_async_context(aiohttp.ClientSession())
            return Gateway(slots, journal, engine, http, stack, exchange.gate)

        yield open_one
