"""How busy generation is while a step takes place: what asynchronous sampling is for."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

from polar.client import PolarClient
from polar.errors import PolarError

LOOK_S = 0.25


class GenerationWatch:
    """Asks the server again and again how many generations its nodes have under way. The nodes report that with
    their heartbeats, so it is as exact as `server.heartbeat_s`."""

    def __init__(self, client: PolarClient) -> None:
        self._client = client
        self._seen: list[int] = []

    async def __aenter__(self) -> GenerationWatch:
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._looking.cancel()
        with suppress(asyncio.CancelledError):
            await self._looking

    def figures(self) -> dict[str, float]:
        """Since the last call: the share of time in which anything was generated, and how much at once."""
        seen, self._seen = self._seen, []
        if not seen:
            return {}
        return {"generating": sum(seen) / len(seen), "generation_busy": sum(map(bool, seen)) / len(seen)}

    async def _look(self) -> None:
        while True:
            with suppress(PolarError):  # a figure, no reason to stop
                self._seen.append((await self._client.drain()).generating)
            await asyncio.sleep(LOOK_S)
