"""An agenda: jobs in the order of their times."""

import heapq
from datetime import UTC, datetime
from itertools import count
from typing import Any


class Agenda:
    """Removing a job only marks it; it is dropped when its turn comes."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, int]] = []
        self._numbers = count()
        self._jobs: dict[int, tuple[str, datetime, Any]] = {}
        """The jobs that are still to be done, by the number of their entry in the heap."""
        self._number_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, name: str) -> bool:
        return name in self._number_of

    def add(self, name: str, at: datetime, job: Any = None) -> None:
        """Adds a job, or moves it if there is one of that name."""
        if name in self._number_of:
            self.cancel(name)
        number = next(self._numbers)
        self._number_of[name] = number
        self._jobs[number] = (name, at, job)
        heapq.heappush(self._heap, (_instant(at), number))

    def cancel(self, name: str) -> None:
        if name not in self._number_of:
            raise KeyError(f"there is no job {name!r}")
        del self._jobs[self._number_of.pop(name)]

    def due(self, now: datetime) -> list[tuple[str, Any]]:
        """Takes all jobs whose time has come, in order."""
        taken: list[tuple[str, Any]] = []
        while self._heap and self._heap[0][0] <= _instant(now):
            _, number = heapq.heappop(self._heap)
            if number in self._jobs:
                name, _, job = self._jobs.pop(number)
                del self._number_of[name]
                taken.append((name, job))
        return taken

    def next_time(self) -> datetime | None:
        """The time of the next job, as it was given; None: there is none."""
        while self._heap and self._heap[0][1] not in self._jobs:
            heapq.heappop(self._heap)
        return self._jobs[self._heap[0][1]][1] if self._heap else None


def _instant(moment: datetime) -> datetime:
    """Comparable whatever the time zone; a time without a zone is in UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
