"""Weights into SGLang from disk. Written from its source; SGLang needs a GPU, so it is tested with a fake.

SGLang keeps its prefix cache while requests run or wait, also those that a pause put back into the queue. So an
update needs an engine without requests: the mode `drain`. The first flush finds that out while the old weights are
still there.
"""

from __future__ import annotations

import msgspec

from polar.engines.remote.server import ServerRefused
from polar.engines.sglang.engine import SglangEngine
from polar.errors import EngineError
from polar.trainers.weights.base import WeightError, Weights
from polar.trainers.weights.server_target import ServerTarget

HOLD = "/pause_generation"
RELEASE = "/continue_generation"
RELOAD = "/update_weights_from_disk"
DROP_CACHE = "/flush_cache"
NAME_VERSION = "/update_weight_version"


class SglangUpdateReply(msgspec.Struct, frozen=True):
    success: bool
    message: str = ""


class SglangTarget(ServerTarget):
    engine_class = SglangEngine
    advice = "use SGLang 0.5.23 or newer, and a worker instead of a router"

    async def hold(self) -> None:
        await self.command(HOLD, {"mode": "retract"})

    async def load(self, weights: Weights) -> None:
        folder = await self.written(weights)
        await self._flush()
        # Its own flush ends the server if it fails.
        body = {"model_path": str(folder), "abort_all_requests": False, "flush_cache": False}
        try:
            reply = await self.server.post(RELOAD, body, SglangUpdateReply)
        except ServerRefused as error:
            raise self.refusal(RELOAD, error) from error
        except EngineError as error:
            raise WeightError(str(error)) from error
        if not reply.success:
            raise WeightError(f"SGLang at {self.server.url} did not load the weights: {reply.message}")
        await self._flush()

    async def release(self) -> None:
        await self.command(RELEASE, {})

    async def name_version(self, version: str) -> None:
        # By default this route aborts all requests.
        await self.command(NAME_VERSION, {"new_version": version, "abort_all_requests": False})

    async def _flush(self) -> None:
        try:
            await self.server.command(DROP_CACHE)
        except ServerRefused as error:
            if error.status != 400:
                raise self.refusal(DROP_CACHE, error) from error
            raise WeightError(
                f"SGLang at {self.server.url} keeps its prefix cache of the old weights while requests are under "
                "way: use the mode `drain`, and no other clients during an update"
            ) from error
        except EngineError as error:
            raise WeightError(str(error)) from error
