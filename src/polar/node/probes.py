"""Probes of a node's parts: engine, disk, file descriptors, runtimes. Each raises if the part does not work."""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

from polar import registry
from polar.engines.base import ChatPrompt, Engine, GenerateRequest, Revivable, TextEngine
from polar.errors import EngineBusy, EngineError, PolarError, RuntimeFailure
from polar.gateway.calls.policy_gate import PolicyGate
from polar.node.health import Probe
from polar.runtimes.base import Runtime
from polar.types import Message, NodePart, Sampling, token_ids

PROBE = "polar-probe"
"""Used as session id."""
WRITTEN_BYTES = 2**20
SPARE_DESCRIPTORS = 64
"""A session takes about ten, and several are set up at once."""


def probes_of(engine: Engine, gate: PolicyGate, root: Path, min_free_bytes: int) -> Mapping[NodePart, Probe]:
    async def descriptors(_: str) -> None:  # not in a thread: the event loop could run short meanwhile
        check_descriptors()

    return {
        "engine": lambda _: check_engine(engine, gate),
        "disk": lambda _: asyncio.to_thread(check_disk, root, min_free_bytes),
        "descriptors": descriptors,
        "runtime": check_runtime,
    }


async def check_engine(engine: Engine, gate: PolicyGate) -> None:
    """Samples one token, as a session's call would: an engine may answer HTTP and still not sample. A busy engine
    is well."""
    if isinstance(engine, Revivable):
        await engine.revive()
    try:
        async with gate.generating(PROBE):
            sampled = await (_says(engine) if isinstance(engine, TextEngine) else _samples(engine))
    except EngineBusy:
        return
    finally:
        gate.forget(PROBE)
    if not sampled:
        raise EngineError("the engine answered a probe without a token")


async def _samples(engine: Engine) -> bool:
    request = GenerateRequest(token_ids([1, 1]), 1, Sampling(), (), PROBE)
    async with aclosing(engine.generate(request)) as pieces:
        given = [piece async for piece in pieces]
    return any(len(piece.ids) for piece in given)


async def _says(engine: TextEngine) -> bool:
    """Whether a reply begins; leaving ends it."""
    prompt = ChatPrompt((Message(role="user", content="Say hi."),), (), Sampling(), (), PROBE)
    async with aclosing(engine.text(prompt)) as pieces:
        async for _ in pieces:
            return True
    return False


def check_disk(root: Path, min_free_bytes: int) -> None:
    free = os.statvfs(root)
    if free.f_bavail * free.f_frsize < min_free_bytes:
        megabytes = free.f_bavail * free.f_frsize // 2**20
        raise PolarError(
            f"{megabytes} MiB are free at {root}; `node.min_free_bytes` asks for more, `polar gc` frees some"
        )
    with tempfile.TemporaryFile(dir=root) as file:
        file.write(bytes(WRITTEN_BYTES))
        file.flush()
        os.fsync(file.fileno())


def check_descriptors() -> None:
    opened: list[int] = []
    try:
        for _ in range(SPARE_DESCRIPTORS):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def descriptors_are_short() -> bool:
    """Whether fewer than `SPARE_DESCRIPTORS` are left. Opens only one: the kernel gives the lowest free number."""
    try:
        lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    os.close(lowest_free)
    return lowest_free >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_DESCRIPTORS


async def check_runtime(name: str) -> None:
    runtime: type[Runtime] = registry.find("runtime", name)
    if lacking := await runtime.lacking():
        raise RuntimeFailure(lacking)
