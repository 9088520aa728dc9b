"""How a request can fail, and how long failures in a row are borne before the caller hears of them."""

from __future__ import annotations

import asyncio
import time

from pydantic import Field

from polar.errors import PolarError
from polar.types import Strict

MAX_DOUBLINGS = 30


class ServerError(PolarError):
    """The rollout server refused a request, failed on it or was not there."""

    def __init__(self, message: str, *, status: int | None = None, detail: str = "") -> None:
        super().__init__(message)
        self.status = status
        """Of the HTTP answer; None: there was none."""
        self.detail = detail or message
        """What the server itself said."""
        self.attempts = 1
        """How often the request was sent."""

    @property
    def transient(self) -> bool:
        """The same request may succeed a moment later."""
        return self.status is None or self.status >= 500


class Retry(Strict):
    """Failures that may pass are tried again, with a delay that doubles from `first_s` to `longest_s`."""

    total_s: float = Field(default=60.0, ge=0)
    """From the first failure; long enough to sit out a restart of the server. 0: no second try."""
    first_s: float = Field(default=0.1, gt=0)
    longest_s: float = Field(default=5.0, gt=0)


class Patience:
    """Counts failures in a row and waits between them, until there were too many."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._failures = 0
        self._since = 0.0

    def reset(self) -> None:
        self._failures = 0

    async def bear(self, error: ServerError) -> None:
        """Returns when it is time for another try; raises the error when there shall be none."""
        now = time.monotonic()
        if self._failures == 0:
            self._since = now
        delay_s = min(self._retry.first_s * 2 ** min(self._failures, MAX_DOUBLINGS), self._retry.longest_s)
        self._failures += 1
        error.attempts = self._failures
        if not error.transient or now + delay_s - self._since > self._retry.total_s:
            raise error
        await asyncio.sleep(delay_s)
