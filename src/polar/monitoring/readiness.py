"""Readiness: whether each part that a process needs works now, tried and not assumed.

Several requests at once share one round of checks, so that no one can load a part by asking.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

FRESH_S = 1.0
"""An answer is given again for so long."""
CHECK_S = 8.0
"""A part that has not answered by then does not work. Below the usual time limit of a prober, 10 s."""
MAX_REASON = 500

Check = Callable[[], Awaitable[str]]
"""Raises if the part does not work; returns what else a reader should know, which is usually nothing."""


@dataclass(frozen=True)
class ReadinessReport:
    problems: Mapping[str, str]
    """By part: why it does not work. Empty: ready."""
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """By part that works: what else is to be known of it; empty as a rule."""

    @property
    def ready(self) -> bool:
        return not self.problems

    @property
    def status(self) -> int:
        """Of the HTTP answer."""
        return 200 if self.ready else 503

    def body(self) -> dict[str, object]:
        parts = {part: note or "ok" for part, note in self.notes.items()} | dict(self.problems)
        return {"ready": self.ready, "checks": dict(sorted(parts.items()))}


class Readiness:
    def __init__(self, checks: Mapping[str, Check], check_s: float = CHECK_S) -> None:
        self._checks = checks
        self._check_s = check_s
        self._round: asyncio.Task[ReadinessReport] | None = None
        self._made_at = float("-inf")

    async def report(self) -> ReadinessReport:
        if self._round is None or (self._round.done() and time.monotonic() - self._made_at > FRESH_S):
            self._round = asyncio.create_task(self._check_all())
        return await asyncio.shield(self._round)

    async def close(self) -> None:
        if self._round is not None and not self._round.done():
            self._round.cancel()
            await asyncio.wait([self._round])

    async def _check_all(self) -> ReadinessReport:
        problems: dict[str, str] = {}
        notes: dict[str, str] = {}

        async def check(part: str) -> None:
            works, text = await self._check(self._checks[part])
            (notes if works else problems)[part] = text

        async with asyncio.TaskGroup() as group:
            for part in self._checks:
                group.create_task(check(part))
        self._made_at = time.monotonic()
        return ReadinessReport(problems, notes)

    async def _check(self, check: Check) -> tuple[bool, str]:
        """Whether the part works, and its note or why not."""
        deadline = asyncio.timeout(self._check_s)
        try:
            async with deadline:
                return True, await check()
        except Exception as error:  # a part may be a plug-in and fail in any way
            if isinstance(error, TimeoutError) and deadline.expired():
                return False, f"no answer within {self._check_s:g} s"
            return False, str(error)[:MAX_REASON] or type(error).__name__
