"""How long to wait before trying again: longer each time, never quite the same for two nodes."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass
class BackOff:
    first_s: float = 0.2
    most_s: float = 5.0
    _tried: int = 0

    def next_s(self) -> float:
        # Many nodes lose one server at the same moment; without jitter they would all come back at once too.
        longest_s = min(self.most_s, self.first_s * 2 ** min(self._tried, 30))
        self._tried += 1
        return longest_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._tried = 0
