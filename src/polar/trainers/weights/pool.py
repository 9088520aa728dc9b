"""Weights into all replicas of a pool, under one version.

Each replica is held, loaded, named and released as if it were alone, all at the same time. One that fails makes
the update fail, with its name, and `WeightUpdates` lets none of them sample before an update has reached all. A
replica that does not answer when an update begins is left out only if the others report the version of their
weights: then the nodes see that it has not got this one, and send it nothing (docs/weights.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from polar.engines.pool.engine import PoolEngine
from polar.engines.pool.options import PoolOptions
from polar.errors import EngineError, PolarError
from polar.registry import options_of
from polar.trainers.weights.base import (
    VersionedTarget,
    WeightError,
    WeightOptions,
    Weights,
    WeightTarget,
    weight_target,
)
from polar.trainers.weights.checkpoint import CheckpointFolder, ModelFolder, SharedCheckpoint
from polar.trainers.weights.server_target import ServerTarget
from polar.types import Spec

LOGGER = logging.getLogger("polar.trainers.weights")
PING_S = 10.0
VERSION_S = 60.0
"""For a token that tells the version, and the self-test before the first one."""


class PoolTarget:
    def __init__(self, engine_options: Mapping[str, Any], model: Path, options: WeightOptions) -> None:
        pool = _pool(engine_options)
        self._checkpoint = SharedCheckpoint(CheckpointFolder(ModelFolder(model), options.dtype, options.folder))
        targets = [weight_target(spec, model, options) for spec in pool.specs()]
        self._targets: dict[str, ServerTarget] = {}
        for name, target in zip(pool.named(), targets, strict=True):
            assert isinstance(target, ServerTarget)
            target.checkpoint = self._checkpoint
            self._targets[name] = target
        self._absent: set[str] = set()
        self._held = False
        self._versions_named = False
        self._named = 0
        """Versions that they were given."""

    @staticmethod
    def inner_specs(options: dict[str, Any]) -> list[Spec]:
        """The engines that must take weights."""
        return list(_pool(options).specs())

    def present(self) -> dict[str, WeightTarget]:
        return {name: target for name, target in self._targets.items() if name not in self._absent}

    async def hold(self) -> None:
        await self._muster()
        if self._named == 1 and not self._held:
            # Asked now, in case this update leaves them held and one is missing at the next.
            with suppress(EngineError):
                await self._all_name_versions()
        self._held = True
        await self._each("did not stop sampling", lambda target: target.hold())

    async def load(self, weights: Weights) -> None:
        if not self._held:
            await self._muster()
        self._checkpoint.renew()
        await self._each("did not take the weights", lambda target: target.load(weights))

    async def name_version(self, version: str) -> None:
        async def named(target: WeightTarget) -> None:
            if isinstance(target, VersionedTarget):
                await target.name_version(version)

        await self._each("did not take the version", named)
        self._named += 1

    async def release(self) -> None:
        """One that has gone meanwhile samples nothing, and comes back without these weights."""
        self._held = False
        self._absent |= await self._silent()
        await self._each("did not go on", lambda target: target.release())

    async def score(self, ids: Sequence[int]) -> list[float]:
        """Of one replica. `WeightProbe` asks each."""
        return await next(iter(self.present().values())).score(ids)

    async def close(self) -> None:
        for target in self._targets.values():
            await target.close()

    async def _muster(self) -> None:
        """Finds out who takes part. Raises `WeightError` if one is missing that might go on with the old
        weights."""
        silent = await self._silent()
        self._absent = silent
        if not silent:
            return
        listed = ", ".join(sorted(silent))
        if not self.present():
            raise WeightError(f"no replica of the pool answers: {listed}; check that the servers run")
        if not await self._all_name_versions():
            raise WeightError(
                f"these replicas of the pool do not answer: {listed}. The others report no weight version, so the "
                "nodes could not tell that they lack the new weights: start them, or take them out of the pool"
            )
        LOGGER.warning("these replicas get no weights and no calls until they answer an update: %s", listed)

    async def _silent(self) -> set[str]:
        async def answers(target: ServerTarget) -> bool:
            try:
                async with asyncio.timeout(PING_S):
                    await target.ping()
            except (EngineError, TimeoutError):
                return False
            return True

        found = await asyncio.gather(*map(answers, self._targets.values()))
        return {name for name, answered in zip(self._targets, found, strict=True) if not answered}

    async def _all_name_versions(self) -> bool:
        """Known once and for all: a server that is held would not answer."""
        if not self._versions_named:
            targets = [self._targets[name] for name in self.present()]
            with suppress(TimeoutError):
                async with asyncio.timeout(VERSION_S):
                    reported = await asyncio.gather(*(target.reported_version() for target in targets))
                    self._versions_named = all(reported)
        return self._versions_named

    async def _each(self, problem: str, do: Callable[[WeightTarget], Awaitable[None]]) -> None:
        """Asks all, also if one fails. Raises `WeightError` with the names of those."""
        targets = self.present()
        outcomes = await asyncio.gather(*(do(target) for target in targets.values()), return_exceptions=True)
        failed: list[str] = []
        for name, outcome in zip(targets, outcomes, strict=True):
            if isinstance(outcome, PolarError):
                failed.append(f"{name}: {outcome}")
            elif outcome is not None:
                raise outcome
        if failed:
            raise WeightError(f"{len(failed)} of {len(targets)} replicas {problem}: {'; '.join(failed)}")


def _pool(options: Mapping[str, Any]) -> PoolOptions:
    parsed = options_of("engine", PoolEngine, dict(options))
    assert isinstance(parsed, PoolOptions)
    return parsed
