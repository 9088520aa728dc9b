"""Exponential back-off: how long to wait before the next try."""

from __future__ import annotations

import random
from dataclasses import dataclass

MAX_DOUBLINGS = 30


@dataclass
class BackOff:
    first_s: float = 0.2
    longest_s: float = 5.0
    jitter: float = 0.5
    """Random share of each pause, so that clients that lost one server together do not all return at once."""
    failures: int = 0
    """In a row."""

    def next_s(self) -> float:
        pause_s = min(self.longest_s, self.first_s * 2 ** min(self.failures, MAX_DOUBLINGS))
        self.failures += 1
        return pause_s * random.uniform(1 - self.jitter, 1)

    def reset(self) -> None:
        self.failures = 0
