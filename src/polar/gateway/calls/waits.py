"""How long a session waits for its model, which is no time of the harness's own.

A call waits from its arrival to its first token: for the renderer, for the end of a pause, in the engine's queue.
A session waits while at least one of its calls does and none is being sampled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal

from polar.types import Waits


class CallWait:
    """One call, as its session's clock sees it."""

    def __init__(self, clock: WaitClock, now_s: float) -> None:
        self._clock = clock
        self.state: Literal["engine", "paused", "sampled"] = "engine"
        self.heard_s = now_s
        """When its last token came, or it arrived."""

    @property
    def has_tokens(self) -> bool:
        return self.state == "sampled"

    def tokens_came(self) -> None:
        self.heard_s = self._clock.now_s()
        if self.state != "sampled":
            self._clock.count()
            self.state = "sampled"

    @contextmanager
    def paused(self) -> Generator[None]:
        self._clock.count()
        self.state = "paused"
        try:
            yield
        finally:
            self._clock.count()
            self.state = "engine"


class WaitClock:
    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        self._counted_s = now_s()
        self._calls: set[CallWait] = set()
        self._paused_s = 0.0
        self._engine_s = 0.0

    @contextmanager
    def call(self) -> Generator[CallWait]:
        self.count()
        call = CallWait(self, self.now_s())
        self._calls.add(call)
        try:
            yield call
        finally:
            self.count()
            self._calls.remove(call)

    def count(self) -> None:
        """Adds what has passed since the last change; called before each."""
        now_s = self.now_s()
        passed_s, self._counted_s = now_s - self._counted_s, now_s
        states = {call.state for call in self._calls}
        if "sampled" in states:
            return
        if "paused" in states:
            self._paused_s += passed_s
        elif states:
            self._engine_s += passed_s

    def read(self) -> Waits:
        self.count()
        now_s = self.now_s()
        silent_s = min((now_s - call.heard_s for call in self._calls), default=0.0)
        return Waits(self._paused_s, self._engine_s, silent_s)
