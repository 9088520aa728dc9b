"""What `polar top` shows, read from the server: again after each event, at most once a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

from polar.client import PolarClient, ServerError
from polar.types import Stage
from polar.types.service.overview import LogLine, Overview, SessionFilter, SessionRowView

OPEN_STAGES = (Stage.RUNNING, Stage.POSTRUN, Stage.READY, Stage.INIT, Stage.QUEUED)
"""The stages whose sessions are listed, in this order."""
LISTED = 100
"""Sessions of each stage."""
LOG_LINES = 200
LEAST_S = 1.0
"""Between two looks, whatever happens."""
MOST_S = 5.0
"""Between two looks if there is no event: heartbeats and time change the values too."""
PATIENCE_S = 5.0
"""A server that does not answer for so long is away."""


@dataclass(frozen=True)
class Snapshot:
    """One look at the service."""

    overview: Overview
    sessions: tuple[SessionRowView, ...] = ()
    """Those without a result."""
    log: tuple[LogLine, ...] = ()
    """Oldest first."""


@dataclass(frozen=True)
class ServiceView:
    """The newest look, and whether the server still answers."""

    snapshot: Snapshot | None = None
    away_since: float | None = None
    """By the monotonic clock; None: the server answers."""
    why: str = ""
    """Why it does not."""


async def look(client: PolarClient) -> Snapshot:
    overview, log = await asyncio.gather(client.overview(), client.log(limit=LOG_LINES))
    stages = [stage for stage in OPEN_STAGES if overview.stages.get(stage)]
    pages = await asyncio.gather(
        *(client.session_list(SessionFilter(stage=stage), limit=LISTED) for stage in stages)
    )
    return Snapshot(overview, tuple(session for page in pages for session in page.sessions), log.lines)


class Feed:
    """Calls `show` with each new view, until it is cancelled. The client must not retry: the feed does."""

    def __init__(self, client: PolarClient, show: Callable[[ServiceView], None]) -> None:
        self._client = client
        self._show = show
        self._view = ServiceView()
        self._changed = asyncio.Event()

    def refresh(self) -> None:
        """Looks again soon, as after an event."""
        self._changed.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_again())
            group.create_task(self._follow_events())

    async def _look_again(self) -> None:
        while True:
            self._changed.clear()
            self._view = await self._next_view()
            self._show(self._view)
            await asyncio.sleep(LEAST_S)
            if self._view.away_since is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(MOST_S - LEAST_S):
                        await self._changed.wait()

    async def _next_view(self) -> ServiceView:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return ServiceView(await look(self._client))
        except ServerError as error:
            why = str(error)
        except TimeoutError:
            why = f"no answer from the server at {self._client.url} within {PATIENCE_S:g} s"
        since = time.monotonic() if self._view.away_since is None else self._view.away_since
        return replace(self._view, away_since=since, why=why)

    async def _follow_events(self) -> None:
        """Begins again at the newest look: a server that comes back may have another database."""
        while True:
            if self._view.snapshot is not None and self._view.away_since is None:
                with suppress(ServerError):
                    async with aclosing(self._client.events(self._view.snapshot.overview.cursor)) as events:
                        async for _ in events:
                            self._changed.set()
                self._changed.set()
            await asyncio.sleep(LEAST_S)
