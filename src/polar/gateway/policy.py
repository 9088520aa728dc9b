"""Which policy generation runs under, and whether it runs at all.

Around a weight update generation is paused: calls that arrive wait, their streams kept awake, and begin under the
new version. A call is stamped with the version under which it began.
"""

from __future__ import annotations

import asyncio

from polar.types import Policy


class PolicyGate:
    def __init__(self) -> None:
        self.policy = Policy()
        self._open = asyncio.Event()
        self._open.set()

    def set(self, policy: Policy) -> None:
        self.policy = policy
        (self._open.clear if policy.paused else self._open.set)()

    async def enter(self) -> str:
        """Waits while generation is paused; the version it goes on with."""
        await self._open.wait()
        return self.policy.version
