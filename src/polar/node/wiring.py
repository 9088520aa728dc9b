"""Puts a node together: engine, gateway, pipeline, journal and health checks.

Gateway and session know each other only here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from polar import __version__, registry
from polar.config import Config
from polar.engines.base import ChatEngine, Engine, EngineInfo, PolicyFollower, TextEngine
from polar.engines.remote.proof import prove_chat
from polar.errors import ConfigError, failure_of
from polar.gateway.calls.call_service import CallService, Mode
from polar.gateway.calls.chat_mode import ChatMode
from polar.gateway.calls.policy_gate import PolicyGate
from polar.gateway.calls.text_mode import TextMode
from polar.gateway.calls.threads import CallThreads
from polar.gateway.calls.token_mode import TokenMode
from polar.gateway.http.handler import Service
from polar.gateway.http.routes import gateway_app
from polar.gateway.http.server import GatewayServer
from polar.gateway.slots import SlotTable
from polar.node.health import NodeHealth, Suspicion
from polar.node.leftovers import claim, release
from polar.node.observers import ObservedSource, Observers, SessionObserver
from polar.node.probes import probes_of
from polar.node.retries import RequeueingSource, RetryingSource, ReturningSource
from polar.runtimes.host.supervisor import Launcher
from polar.session.base import SessionSource, Watcher
from polar.session.live import Services
from polar.session.pipeline import Pipeline, to_the_end
from polar.store.database import StoreError
from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.tokens.additions import additions_of
from polar.tokens.base import Renderer
from polar.tokens.preflight.checks import Preflight, preflight, without_bridges
from polar.types import Lease, SessionResult, Stage, Trajectory

NAME = f"{socket.gethostname()}:{os.getpid()}"
"""Of this process, for display."""
LOGGER = logging.getLogger("polar.node")


class JournalledSource:
    """A source that writes sessions and results to the node's journal first. A session that cannot be written does
    not begin: it is reported as failed at once."""

    def __init__(self, source: SessionSource, journal: Journal, health: NodeHealth | None = None) -> None:
        self._source = source
        self._journal = journal
        self._health = health

    async def lease(self, room: int) -> list[Lease]:
        while leases := await self._source.lease(room):
            taken: list[Lease] = []
            if await to_the_end(self._add(leases, taken)):
                # Every lease needs a report, so the pipeline gets them first and is cancelled at its next step.
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            if taken:
                return taken
            await asyncio.sleep(0)  # lets a cancellation through
        return []

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        try:
            await self._journal.save_result(result)
        except StoreError as error:  # report it all the same: a client waits for it
            extra = {"session_id": result.session_id}
            LOGGER.error("session %s: its result is not in the journal: %s", result.session_id, error, extra=extra)
            if self._health is not None:
                await self._health.examine(Suspicion("disk"))
        await self._source.report(result, trajectory)

    async def _add(self, leases: list[Lease], taken: list[Lease]) -> None:
        try:
            await self._journal.add_sessions(leases)
            taken += leases
        except StoreError as error:
            for lease in leases:
                await self._source.report(_unjournalled(lease, error), None)


def _unjournalled(lease: Lease, error: StoreError) -> SessionResult:
    session = lease.session
    return SessionResult(
        session_id=session.session_id,
        task_id=session.task_id,
        index=session.index,
        attempt=session.attempt,
        stage=Stage.FAILED,
        attempts=lease.earlier,
        failure=failure_of("journal", error),
    )


@dataclass(frozen=True)
class Prompts:
    """What renders prompts."""

    renderer: Renderer | None = None
    """None: the engine (chat mode, or an endpoint without token ids)."""
    preflight: Preflight | None = None
    """The renderer's test report. If its bridges are not proven, none is used."""

    @property
    def name(self) -> str:
        if self.renderer is None:
            return "engine"
        return self.renderer.fingerprint + ("" if self.preflight and self.preflight.bridges else " forking")


@dataclass(frozen=True)
class Node:
    """A running node: its gateway listens, its engine answers."""

    config: Config
    paths: RunPaths
    journal: Journal
    engine: Engine
    engine_info: EngineInfo
    prompts: Prompts
    slots: SlotTable
    gate: PolicyGate
    launcher: Launcher
    health: NodeHealth
    calls: CallService

    @property
    def versions(self) -> dict[str, str]:
        info = self.engine_info
        return {
            "polar": __version__,
            "engine": f"{info.name} {info.version}".strip(),
            "model": info.model,
            "renderer": self.prompts.name,
        }

    async def serve(self, source: SessionSource, watchers: tuple[Watcher, ...] = ()) -> None:
        """Runs the source's sessions until it has no more."""
        await self.pipeline(source, watchers).serve()

    def pipeline(
        self,
        source: SessionSource,
        watchers: tuple[Watcher, ...] = (),
        allowed_modules: tuple[str, ...] = (registry.ANY_MODULE,),
        observers: Sequence[SessionObserver] = (),
    ) -> Pipeline:
        """For callers that do more than serve, such as cancel a session. `allowed_modules`: those its tasks may
        name."""
        seen = Observers(observers)
        returning = source if isinstance(source, ReturningSource) else RequeueingSource(source)
        retrying = RetryingSource(returning, self.health, self.config.node, NAME)
        services = Services(
            slots=self.slots,
            policy=self.gate,
            paths=self.paths,
            watchers=(self.journal, retrying, *watchers, seen),
            versions=self.versions,
            launcher=self.launcher,
            permits=self.config.permits,
            allowed_modules=allowed_modules,
            notes_on=partial(additions_of, self.prompts.renderer),
        )
        if observers:
            self.calls.watch(seen.call_ended)
        journalled = JournalledSource(retrying, self.journal, self.health)
        pipeline = Pipeline(self.config.pools, services, ObservedSource(journalled, seen))
        retrying.attach(pipeline.cancel)
        self.gate.watch(pipeline.policy_changed)
        return pipeline


@asynccontextmanager
async def open_node(
    config: Config, paths: RunPaths, *, engine: Engine | None = None, renderer: Renderer | None = None
) -> AsyncGenerator[Node]:
    """Starts a node and stops it at the end. `engine` and `renderer` replace those of the config."""
    chosen: Engine = engine or registry.make("engine", config.engine)
    prompts = Prompts() if isinstance(chosen, TextEngine) else await _prompts(config, renderer)
    claim(paths)
    threads = CallThreads()
    launcher = Launcher()
    try:
        info, gate = await chosen.start(), PolicyGate()
        if isinstance(chosen, PolicyFollower):
            follower = chosen
            gate.watch(lambda: follower.policy_changed(gate.policy.version))
        mode = await _mode(prompts, chosen, info, gate, threads)
        async with await Journal.open(paths.journal) as journal:
            slots = SlotTable(journal, config.model.name, info.context_tokens)
            calls = CallService(mode, gate, info, journal, config.model.name)
            app = gateway_app(Service(slots, calls, config.gateway, threads))
            server = GatewayServer(app, config.gateway)
            slots.base_url, slots.listeners = server.base_url, server.listeners
            health = NodeHealth(probes_of(chosen, gate, paths.root, config.node.min_free_bytes), config.node)
            try:
                await server.start()
                yield Node(config, paths, journal, chosen, info, prompts, slots, gate, launcher, health, calls)
            finally:
                await health.close()
                await server.stop()
    finally:
        threads.close()
        await launcher.close()
        await chosen.stop()
        release(paths)


async def _prompts(config: Config, given: Renderer | None) -> Prompts:
    spec = config.model.spelling
    if config.model.mode == "chat" or spec is None:
        return Prompts()
    renderer: Renderer = given or registry.make("renderer", spec)
    if given is None:
        await renderer.load()
    report = await asyncio.to_thread(preflight, renderer)
    for problem in report.problems:
        LOGGER.warning("renderer preflight: %s", problem)
    return Prompts(renderer if report.bridges else without_bridges(renderer), report)


async def _mode(
    prompts: Prompts, engine: Engine, info: EngineInfo, gate: PolicyGate, threads: CallThreads
) -> Mode:
    if isinstance(engine, TextEngine):
        return TextMode(engine, info)
    if prompts.renderer is not None:
        return TokenMode(prompts.renderer, engine, info, threads)
    if not isinstance(engine, ChatEngine):
        raise ConfigError(
            f'engine {info.name!r} has no chat endpoint: set [model] mode = "tokens" and a renderer, or choose an '
            "engine that renders prompts itself (docs/engines.md)"
        )
    await prove_chat(engine)
    return ChatMode(engine, gate)
