"""The rollout server as a whole: opens the state, serves the app on the current event loop, and lets time pass.

A new server on the same database goes on where the last one stopped, however that one ended.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

from polar.config import ServerConfig
from polar.server.app import make_app
from polar.server.auth import Tokens
from polar.server.callback_delivery import Delivery
from polar.server.records import leases, nodes
from polar.server.state import Change, Clock, State
from polar.store.database import StoreError

log = logging.getLogger("polar.server")


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals belong to the process that owns the server."""
        yield


class RolloutServer:
    """`async with RolloutServer(config, control_token=..., node_token=...) as server:` or start and stop."""

    def __init__(
        self, config: ServerConfig, *, control_token: str, node_token: str, clock: Clock = time.time
    ) -> None:
        self._config = config
        self._tokens = Tokens(control_token, node_token)
        self._clock = clock
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._state: State | None = None
        self._work: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        assert self._socket is not None, "the server has an address once it is started"
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def state(self) -> State:
        assert self._state is not None, "the server has its state once it is started"
        return self._state

    async def __aenter__(self) -> RolloutServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Returns when requests are answered."""
        self._socket = _listen(self._config)
        try:
            self._state = await State.open(self._config, self._clock)
            self._server = _Server(_uvicorn_config(self._state, self._tokens))
            self._work = asyncio.create_task(self._run(self._server))
            while not self._server.started:
                if self._work.done():
                    self._work.result()
                await asyncio.sleep(0.01)
        except BaseException:
            await self.stop()
            raise

    async def wait(self) -> None:
        """Until the server ends; an error in any part of it ends it and is raised here."""
        assert self._work is not None, "start the server first"
        await asyncio.shield(self._work)

    async def stop(self) -> None:
        """Answers what is under way, sends long polls and event streams home. Stopping twice is harmless."""
        if self._state is not None:
            self._state.silence()
        if self._server is not None:
            self._server.should_exit = True
        if self._work is not None:
            await asyncio.wait((self._work,))
            if not self._work.cancelled() and (error := self._work.exception()):
                log.error("the rollout server had failed", exc_info=error)
        if self._state is not None:
            await self._state.close()
        if self._socket is not None:
            self._socket.close()

    async def _run(self, server: _Server) -> None:
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(self._let_leases_expire()),
                group.create_task(Delivery(self.state).run()),
            ]
            try:
                await server.serve(sockets=[self._socket] if self._socket else None)
            finally:
                for task in background:
                    task.cancel()

    async def _let_leases_expire(self) -> None:
        """A node cannot be blamed for a time in which nobody listened, so first all leases are prolonged: after a
        start, and after the database was away."""
        listened = False
        while True:
            try:
                if not listened:
                    await self.state.change(leases.prolong)
                    listened = True
                await self.state.change(_pass_time)
            except StoreError as error:
                listened = False
                log.warning("leases stand still: %s", error)
            await asyncio.sleep(self._config.heartbeat_s / 2)


def _listen(config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listening = socket.create_server((config.host, config.port), family=family, backlog=2048)
    # Connections inherit it. asyncio sets it only on sockets that name TCP as their protocol, which this one does
    # not, and without it each answer on a connection in use waits 40 ms for the client's acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _pass_time(change: Change) -> None:
    leases.expire(change)
    nodes.forget(change)


def _uvicorn_config(state: State, tokens: Tokens) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(state, tokens),
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=75,
    )
