"""Which errors are retried, and for how long."""

from __future__ import annotations

import asyncio
import time

from pydantic import Field

from polar.back_off import BackOff
from polar.errors import PolarError
from polar.types import Strict


class ServerError(PolarError):
    """The rollout server refused a request, failed on it, or could not be reached."""

    def __init__(
        self, message: str, *, status: int | None = None, detail: str = "", unreachable: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        """Of the HTTP answer; None if there was none."""
        self.detail = detail or message
        """The server's own message."""
        self.unreachable = unreachable
        """Nothing listens there, or it is not to be trusted: a connection that only broke off is worth a try."""
        self.attempts = 1
        """How often the request was sent."""

    @property
    def transient(self) -> bool:
        """The same request may succeed later."""
        return self.status is None or self.status >= 500


class Retry(Strict):
    """Transient errors are retried, with a delay that doubles from `first_s` to `longest_s`."""

    total_s: float = Field(default=60.0, ge=0)
    """From the first failure; long enough for a restart of the server. 0: no retries."""
    unreachable: bool = True
    """Also while nothing listens there, as during a restart."""
    first_s: float = Field(default=0.1, gt=0)
    longest_s: float = Field(default=5.0, gt=0)


class Retrier:
    """Counts failures in a row and waits between them, until they have lasted too long."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._back_off = BackOff(retry.first_s, retry.longest_s, jitter=0)
        self._since = 0.0

    def reset(self) -> None:
        self._back_off.reset()

    async def wait(self, error: ServerError) -> None:
        """Returns when it is time to try again; raises the error if it is not retried."""
        now = time.monotonic()
        if self._back_off.failures == 0:
            self._since = now
        delay_s = self._back_off.next_s()
        error.attempts = self._back_off.failures
        worth_it = error.transient and (self._retry.unreachable or not error.unreachable)
        if not worth_it or now + delay_s - self._since > self._retry.total_s:
            raise error
        await asyncio.sleep(delay_s)
