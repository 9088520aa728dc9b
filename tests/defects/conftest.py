"""The benches of the other suites, for tests that need several of them."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent
BENCHES = ("unit/builders", "unit/tokens", "integration/gateway", "integration/session", "integration/server")
sys.path.extend(str(TESTS / bench) for bench in BENCHES)

from desk import Api, Clock, Desk, OpenServer, config_of  # noqa: E402
from playbook import Gateway, OpenGateway, running_gateway  # noqa: E402
from workshop import Workshop  # noqa: E402

from polar.server.serve import RolloutServer  # noqa: E402
from polar.server.state import State  # noqa: E402
from polar.testing import Script  # noqa: E402
from polar.tokens.renderers.smollm2 import SmolLM2Renderer  # noqa: E402


@pytest.fixture
async def open_gateway(smollm2: SmolLM2Renderer, tmp_path: Path) -> AsyncGenerator[OpenGateway]:
    async with AsyncExitStack() as stack:

        async def open_one(script: Script, **settings: Any) -> Gateway:
            return await running_gateway(stack, smollm2, tmp_path, script, **settings)

        yield open_one


@pytest.fixture
def workshop(smollm2: SmolLM2Renderer, tmp_path: Path) -> Workshop:
    return Workshop(smollm2, tmp_path / "runs")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def desk(tmp_path: Path, clock: Clock) -> AsyncGenerator[Desk]:
    state = await State.open(config_of(f"sqlite:///{tmp_path / 'server.db'}"), clock)
    yield Desk(state, clock)
    await state.close()


@pytest.fixture
async def open_server(tmp_path: Path, clock: Clock) -> AsyncGenerator[OpenServer]:
    """One after the other, on the same database."""
    async with AsyncExitStack() as stack:

        async def open_one(**settings: object) -> Api:
            config = config_of(f"sqlite:///{tmp_path / 'server.db'}", **settings)
            server = RolloutServer(config, control_token="control-secret", node_token="node-secret", clock=clock)
            await server.start()
            stack.push_async_callback(server.stop)
            return await stack.enter_async_context(Api(server))

        yield open_one
