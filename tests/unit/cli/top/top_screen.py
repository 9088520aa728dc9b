"""`polar top` in Textual's own test terminal: what is on the screen as text, and keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot

from polar.cli.top.app import TopApp
from polar.client import PolarClient, Retry
from waiting import until

from .fake_service import TOKEN


class TopScreen:
    def __init__(self, url: str, token: str = TOKEN) -> None:
        self.app = TopApp(PolarClient(url, token, retry=Retry(total_s=0)))
        self._pilot: Pilot[None] | None = None

    @asynccontextmanager
    async def open(self, columns: int = 80, lines: int = 24) -> AsyncIterator[TopScreen]:
        async with self.app.run_test(size=(columns, lines), notifications=True) as pilot:
            self._pilot = pilot
            await until(lambda: self.app.snapshot)
            await pilot.pause()
            yield self

    @property
    def pilot(self) -> Pilot[Any]:
        assert self._pilot is not None
        return self._pilot

    @property
    def lines(self) -> list[str]:
        strips = self.app.screen._compositor.render_strips()  # type: ignore[attr-defined]
        return [strip.text.rstrip() for strip in strips]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    async def press(self, *keys: str) -> str:
        await self.pilot.press(*keys)
        await self.pilot.pause()
        return self.text

    async def shows(self, text: str) -> str:
        """Waits until it is on the screen."""
        await until(lambda: text in self.text)
        return self.text
