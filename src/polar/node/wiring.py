"""Wires a gateway to a pipeline, and keeps what passes through both in the node's journal.

Gateway and session know each other only here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from polar import __version__, registry
from polar.config import Config
from polar.engines.base import ConversingEngine, Engine, EngineInfo
from polar.engines.conversing_proof import prove_conversing
from polar.errors import ConfigError
from polar.gateway.app import GatewayApp, GatewayServer
from polar.gateway.chat_mode import ChatMode
from polar.gateway.exchange import Exchange
from polar.gateway.mode import Mode
from polar.gateway.policy import PolicyGate
from polar.gateway.slots import SlotTable
from polar.gateway.threads import CallThreads
from polar.gateway.token_mode import TokenMode
from polar.node.leftovers import claim, release
from polar.runtimes.supervisor import Launcher
from polar.session.base import SessionSource, Watcher
from polar.session.live import Services
from polar.session.pipeline import Pipeline, to_the_end
from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.tokens.base import Renderer
from polar.tokens.preflight import Preflight, forking, preflight
from polar.types import Lease, SessionResult, Trajectory

LOGGER = logging.getLogger("polar.node")


class JournalledSource:
    """A source whose sessions and results are on the node's own disk before anybody else hears of them."""

    def __init__(self, source: SessionSource, journal: Journal) -> None:
        self._source = source
        self._journal = journal

    async def lease(self, room: int) -> list[Lease]:
        leases = await self._source.lease(room)
        if await to_the_end(self._journal.add_sessions(leases)):
            # Each lease gets a report, so the pipeline takes them first and is cancelled at its next step.
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return leases

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        try:
            await self._journal.save_result(result)
        finally:  # a full disk is this node's trouble; who waits for the result still has to hear of it
            await self._source.report(result, trajectory)


@dataclass(frozen=True)
class Prompts:
    """Who lays prompts out."""

    renderer: Renderer | None = None
    """None: the engine does."""
    preflight: Preflight | None = None
    """What the renderer was found to do; where its bridges are not proven, none is used."""

    @property
    def name(self) -> str:
        if self.renderer is None:
            return "engine"
        return self.renderer.fingerprint + ("" if self.preflight and self.preflight.bridges else " forking")


@dataclass(frozen=True)
class Node:
    """A node that is up: its gateway listens, its engine answers."""

    config: Config
    paths: RunPaths
    journal: Journal
    engine: Engine
    engine_info: EngineInfo
    prompts: Prompts
    slots: SlotTable
    gate: PolicyGate
    launcher: Launcher

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

    def pipeline(self, source: SessionSource, watchers: tuple[Watcher, ...] = ()) -> Pipeline:
        """For who wants more of it than to serve: to cancel a session, for instance."""
        services = Services(
            slots=self.slots,
            policy=self.gate,
            paths=self.paths,
            watchers=(self.journal, *watchers),
            versions=self.versions,
            launcher=self.launcher,
        )
        pipeline = Pipeline(self.config.pools, services, JournalledSource(source, self.journal))
        self.gate.watch(pipeline.policy_changed)
        return pipeline


@asynccontextmanager
async def open_node(
    config: Config, paths: RunPaths, *, engine: Engine | None = None, renderer: Renderer | None = None
) -> AsyncGenerator[Node]:
    """Brings a node up and takes it down again. Engine and renderer are the config's unless they are given."""
    prompts = await _prompts(config, renderer)
    chosen: Engine = engine or registry.make("engine", config.engine)
    claim(paths)
    threads = CallThreads()
    launcher = Launcher()
    try:
        info, gate = await chosen.start(), PolicyGate()
        mode = await _mode(prompts, chosen, info, gate, threads)
        async with await Journal.open(paths.journal) as journal:
            slots = SlotTable(journal, config.model.name, info.context_tokens)
            exchange = Exchange(mode, gate, info, journal, config.model.name)
            server = GatewayServer(GatewayApp(slots, exchange, config.gateway, threads), config.gateway)
            slots.base_url, slots.doors = server.base_url, server
            try:
                await server.start()
                yield Node(config, paths, journal, chosen, info, prompts, slots, gate, launcher)
            finally:
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
        LOGGER.warning("the renderer, tried out: %s", problem)
    return Prompts(renderer if report.bridges else forking(renderer), report)


async def _mode(
    prompts: Prompts, engine: Engine, info: EngineInfo, gate: PolicyGate, threads: CallThreads
) -> Mode:
    if prompts.renderer is not None:
        return TokenMode(prompts.renderer, engine, info, threads)
    if not isinstance(engine, ConversingEngine):
        raise ConfigError(
            f'engine {info.name!r} has no chat endpoint: set [model] mode = "tokens" and a renderer, or choose an '
            "engine that lays prompts out itself (docs/engines.md)"
        )
    await prove_conversing(engine)
    return ChatMode(engine, info, gate)
