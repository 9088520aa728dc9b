"""The rollout server as a whole: state, HTTP app, and background work.

A new server on the same database continues where the last one stopped, however it ended.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable

from polar.bounded_http import HttpLimits
from polar.config import ServerConfig, is_loopback
from polar.errors import ConfigError
from polar.monitoring.loop_lag import LoopLag
from polar.server.access.tokens import ServiceTokens
from polar.server.app import Pages, make_app
from polar.server.callbacks.delivery import CallbackDelivery
from polar.server.clock import Clock, ServiceClock, database_time
from polar.server.overview.log_lines import ServerLog
from polar.server.records import leases, nodes
from polar.server.retention.run import Retention
from polar.server.state import Change, State
from polar.store.database import StoreError
from polar.tls import CertificateUnusable, TlsCertificate
from polar.uvicorn_server import UvicornServer, address_of, listen

log = logging.getLogger("polar.server")


class RolloutServer:
    """`async with RolloutServer(config, control_token=..., node_token=...) as server:` or start and stop."""

    def __init__(  # noqa: PLR0913 - three tokens, two clocks
        self,
        config: ServerConfig,
        *,
        control_token: str,
        node_token: str,
        metrics_token: str = "",
        clock: Clock | None = None,
        steady: Clock | None = None,
        pages: Pages | None = None,
    ) -> None:
        """`clock`: None: the database's. `steady`: a clock that no one sets; None: the system's, or `clock` if
        that is given."""
        self._config = config
        self._tokens = ServiceTokens(control_token, node_token, metrics_token)
        self._wall = clock
        self._clock = ServiceClock((clock or time.time)(), steady or clock or time.monotonic)
        self._pages = pages
        self._socket: socket.socket | None = None
        self._server: UvicornServer | None = None
        self._state: State | None = None
        self._work: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        assert self._socket is not None, "start the server first"
        return address_of(self._socket, self._config.scheme)

    @property
    def state(self) -> State:
        assert self._state is not None, "start the server first"
        return self._state

    async def __aenter__(self) -> RolloutServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Returns when requests are answered."""
        self._socket = listen(self._config.host, self._config.port)
        try:
            self._state = await State.open(self._config, self._clock)
            self._clock.follow(await self._wall_time())
            limits = HttpLimits(self._config.max_connections, self._config.stalled_request_s)
            app = make_app(self._state, self._tokens, self._pages)
            await app.state.access.tokens.refresh()
            self._server = UvicornServer(app, limits=limits, certificate=self._certificate())
            self._work = asyncio.create_task(self._run(self._server, self._socket))
            await self._server.until_started(self._work)
        except BaseException:
            await self.stop()
            raise

    def _certificate(self) -> TlsCertificate | None:
        config = self._config
        if config.tls_cert is None or config.tls_key is None:
            if not is_loopback(config.host):
                log.warning(
                    "the server listens on %s without TLS: tokens can be read on the network. Set server.tls_cert "
                    "and server.tls_key, or listen on loopback behind a proxy that speaks TLS",
                    config.host,
                )
            return None
        try:
            return TlsCertificate(config.tls_cert, config.tls_key)
        except CertificateUnusable as error:
            raise ConfigError(f"server.tls_cert: {error}") from error

    async def wait(self) -> None:
        """Returns when the server has ended, and raises the error that ended it."""
        assert self._work is not None, "start the server first"
        await asyncio.shield(self._work)

    async def stop(self) -> None:
        """Finishes open requests, and ends long polls and event streams. May be called twice."""
        if self._state is not None:
            self._state.close_signals()
        if self._server is not None:
            self._server.end()
        if self._work is not None:
            await asyncio.wait((self._work,))
            if not self._work.cancelled() and (error := self._work.exception()):
                log.error("the rollout server failed", exc_info=error)
        if self._state is not None:
            await self._state.close()
        if self._socket is not None:
            self._socket.close()

    async def _run(self, server: UvicornServer, listening: socket.socket) -> None:
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(self._expire_leases()),
                group.create_task(CallbackDelivery(self.state).run()),
                group.create_task(ServerLog(self.state).run()),
                group.create_task(LoopLag(self.state.counts.meters).watch()),
                group.create_task(Retention(self.state).run()),
            ]
            try:
                await server.serve(sockets=[listening])
            finally:
                for task in background:
                    task.cancel()

    async def _expire_leases(self) -> None:
        """Gives all leases their full length first: after a start or an outage of the database, in which nodes
        could not renew them, and after the clock was set, when old times of expiry mean nothing."""
        repair: Callable[[Change], None] | None = leases.extend_all
        while True:
            try:
                if moved := await self._clock_was_set():
                    log.warning("the clock was set by %+.0f s: all leases begin again", moved)
                    repair = leases.renew_all
                if repair is not None:
                    await self.state.change(repair)
                    repair = None
                await self.state.change(_expire)
            except StoreError as error:
                repair = repair or leases.extend_all
                log.warning("leases cannot be checked: %s", error)
            await asyncio.sleep(self._config.heartbeat_s / 2)

    async def _clock_was_set(self) -> float:
        """By how many seconds; 0: it was not. Less than a heartbeat does no harm."""
        moved = self._clock.follow(await self._wall_time())
        return moved if abs(moved) > self._config.heartbeat_s else 0.0

    async def _wall_time(self) -> float:
        return self._wall() if self._wall is not None else await self.state.read(database_time)


def _expire(change: Change) -> None:
    leases.expire(change)
    nodes.forget(change)
