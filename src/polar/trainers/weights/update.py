"""One weight update from start to end: pause or hold, load, prove, set the version, go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Literal

from polar.client import PolarClient
from polar.errors import PolarError
from polar.trainers.weights.base import ReplicatedTarget, VersionedTarget, WeightError, Weights, WeightTarget
from polar.trainers.weights.probe import WeightProbe

UpdateMode = Literal["drain", "in_flight"]
"""drain: replies under way end first, under the weights that began them. in_flight: they continue under the new
ones."""
ASK_S = 0.05
"""How often the server is asked which nodes know the new version."""


class WeightUpdates:
    """Pushes new weights into the engine of a running service. With a `probe` every push is proven."""

    def __init__(
        self,
        client: PolarClient,
        target: WeightTarget,
        mode: UpdateMode,
        probe: WeightProbe | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """`timeout_s` bounds the wait for replies to end (drain), or for nodes to acknowledge (in_flight)."""
        self._client = client
        self._target = target
        self._mode = mode
        self._probe = probe
        self._timeout_s = timeout_s
        self._torn = False
        """Replicas may have different weights, and must not sample."""

    async def begin(self, weights: Weights) -> None:
        """Before the first push, while no session runs: the engine gets the trainer's weights, whatever it was
        started with, so that the probe measures the noise and not a difference of weights. A trainer that was
        killed within an update may have left it held, and then it would not score."""
        await self._target.load(weights)
        await self._target.release()
        if self._probe is not None:
            await self._probe.measure_noise()

    async def push(self, weights: Weights, version: str) -> None:
        """Returns when new calls are sampled from `weights` and recorded under `version`.

        Raises `WeightError` and resumes generation in any case but one. Then the engine's weights are unknown, and
        the version is still the old one, unless it was the proof in flight that failed. The exception are several
        replicas, of which some may have taken the weights: generation stays paused, or the replicas held, until a
        push succeeds.
        """
        try:
            await (self._push_drained if self._mode == "drain" else self._push_in_flight)(weights, version)
        except PolarError as error:
            if not self._torn:
                raise
            raise WeightError(
                f"{error}; the replicas may have different weights, so none of them samples until a push succeeds"
            ) from error

    async def _push_drained(self, weights: Weights, version: str) -> None:
        async with self._paused():
            self._torn = isinstance(self._target, ReplicatedTarget)
            await self._target.load(weights)
            await self._prove()
            self._torn = False
            await self._set_version(version)

    async def _push_in_flight(self, weights: Weights, version: str) -> None:
        async with self._held():
            self._torn = isinstance(self._target, ReplicatedTarget)
            await self._target.load(weights)
            self._torn = False
            await self._set_version(version)
            # A node that does not know the version yet records new calls under the old one. While the engine is
            # held they get no tokens, and then the node sees that the version changed within them.
            await self._acknowledged()
        await self._prove_released()

    async def _prove_released(self) -> None:
        """A held engine does not score."""
        try:
            await self._prove()
        except BaseException:
            self._torn = isinstance(self._target, ReplicatedTarget)
            if self._torn:
                with suppress(PolarError):
                    await self._target.hold()
            raise

    async def _set_version(self, version: str) -> None:
        if isinstance(self._target, VersionedTarget):
            await self._target.name_version(version)
        await self._client.set_policy_version(version)

    async def _prove(self) -> None:
        if self._probe is not None:
            await self._probe.check()

    async def _acknowledged(self) -> None:
        unheard: tuple[str, ...] = ()
        try:
            async with asyncio.timeout(self._timeout_s):
                while unheard := (await self._client.drain()).unheard:  # noqa: ASYNC110 - the server's state
                    await asyncio.sleep(ASK_S)
        except TimeoutError:
            raise WeightError(
                f"after {self._timeout_s:g} s these nodes do not know the new version: {', '.join(unheard)}; "
                "check that they run, or use the mode `drain`"
            ) from None

    @asynccontextmanager
    async def _paused(self) -> AsyncGenerator[None]:
        try:
            await self._client.pause(wait=True, timeout_s=self._timeout_s)
            yield
        except BaseException:
            if not self._torn:
                with suppress(PolarError):  # the first error is the one to report
                    await self._client.resume()
            raise
        await self._client.resume()

    @asynccontextmanager
    async def _held(self) -> AsyncGenerator[None]:
        try:
            await self._target.hold()
            yield
        except BaseException:
            if not self._torn:
                with suppress(PolarError):
                    await self._target.release()
            raise
        await self._target.release()
