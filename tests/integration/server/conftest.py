"""Databases of both kinds, a clock the tests move, and a server on a real socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from desk import Api, Clock, Desk, OpenServer, config_of

from pg_cluster import Postgres
from polar.server.serve import RolloutServer
from polar.server.state import State


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.check)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'server.db'}"
    cluster: Postgres = request.getfixturevalue("postgres")
    return cluster.new_database()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def desk(database: str, clock: Clock) -> AsyncGenerator[Desk]:
    state = await State.open(config_of(database), clock)
    yield Desk(state, clock)
    await state.close()


@pytest.fixture
async def open_server(tmp_path: Path, clock: Clock) -> AsyncGenerator[OpenServer]:
    """Opens servers one after the other, on SQLite unless another database is named."""
    async with AsyncExitStack() as stack:

        async def open_one(database: str | None = None, **settings: object) -> Api:
            config = config_of(database or f"sqlite:///{tmp_path / 'server.db'}", **settings)
            server = RolloutServer(config, control_token="control-secret", node_token="node-secret", clock=clock)
            await server.start()
            stack.push_async_callback(server.stop)
            return await stack.enter_async_context(Api(server))

        yield open_one


@pytest.fixture
async def api(open_server: OpenServer) -> Api:
    return await open_server()
