"""A node at work for a rollout server: its source, pipeline, heartbeats and status, put together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from polar.node.abilities import LOOK_AGAIN_S, MachineSurvey
from polar.node.observers import SessionObserver
from polar.node.server_source import Controls, ServerSource
from polar.node.status.service import node_status
from polar.node.uplink import Uplink
from polar.node.wiring import NAME, Node
from polar.store.session_files import read_files
from polar.types import Registration, SessionFile

log = logging.getLogger("polar.node")


async def serve_server(
    node: Node,
    uplink: Uplink,
    stop: asyncio.Event,
    hurry: asyncio.Event | None = None,
    observers: Sequence[SessionObserver] = (),
) -> None:
    """Runs the sessions that the server leases. After `stop` sessions may end for `node.drain_s`, unless `hurry`
    is set; then it hands back those that still run, uploads finished ones, and leaves."""
    survey = MachineSurvey(node.config, node.engine_info)
    abilities = await survey.look()
    source = ServerSource(uplink, Registration(name=NAME, slots=node.config.pools.running, abilities=abilities))

    async def look_again() -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            source.can(await survey.look())

    async def stop_source() -> None:
        await stop.wait()
        if drain_s := node.config.node.drain_s:
            log.info("no more leases; sessions that run may end for %g s", drain_s)
            source.drain()
            with suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await (hurry or asyncio.Event()).wait()
        source.stop()

    async with node_status(node, source, observers) as all_observers:
        beside = [asyncio.create_task(work()) for work in (source.beat, stop_source, look_again)]
        try:
            await _serve(node, source, all_observers)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await source.close()


async def _serve(node: Node, source: ServerSource, observers: Sequence[SessionObserver]) -> None:
    pipeline = node.pipeline(source, (source,), node.config.node.allowed_modules, observers)
    source.attach(
        Controls(
            cancel=pipeline.cancel,
            set_policy=node.gate.set,
            generating=lambda: node.gate.under_way,
            calls=node.journal.calls,
            sickness=lambda: node.health.sick,
            files=lambda session_id: read_files(node.paths.session(session_id), node.config.node.upload_bytes),
            files_so_far=lambda session_id: _files_so_far(node, session_id),
            use=node.calls.use.read,
            waited_s=node.slots.waited_s,
        )
    )
    with source.log.listening():
        await pipeline.serve()
    await source.leave()


def _files_so_far(node: Node, session_id: str) -> tuple[SessionFile, ...]:
    """Empty before the session has a slot: without its key, the key cannot be removed."""
    key = node.slots.key_of(session_id)
    if key is None:
        return ()
    files = read_files(node.paths.session(session_id), node.config.node.upload_bytes)
    hidden = (file.content.replace(key.encode(), b"<key>") for file in files)
    return tuple(replace(file, content=content) for file, content in zip(files, hidden, strict=True))
