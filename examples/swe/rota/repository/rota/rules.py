"""Rules for times that repeat."""

import calendar
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count as counting
from itertools import islice, takewhile
from typing import Literal


@dataclass(frozen=True)
class Rule:
    unit: Literal["daily", "weekly", "monthly"]
    every: int = 1
    weekdays: tuple[int, ...] = ()
    """Of a weekly rule, 0 is Monday; none: the start's."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError("a rule repeats every 1 or more days, weeks or months")

    def occurrences(
        self, start: datetime, *, count: int | None = None, until: datetime | None = None
    ) -> list[datetime]:
        """The first `count` times, and none after `until`; one of the two is needed."""
        if count is None and until is None:
            raise ValueError("a rule repeats for ever: give `count` or `until`")
        times = self._times(start)
        if until is not None:
            times = takewhile(lambda time: time <= until, times)
        return list(islice(times, count))

    def _times(self, start: datetime) -> Iterator[datetime]:
        if self.unit == "daily":
            return (start + timedelta(days=self.every * number) for number in counting())
        if self.unit == "weekly":
            return self._weekly(start)
        return (self._month_later(start, self.every * number) for number in counting())

    def _weekly(self, start: datetime) -> Iterator[datetime]:
        monday = start - timedelta(days=start.weekday())
        weekdays = sorted(set(self.weekdays)) or [start.weekday()]
        for number in counting():
            for weekday in weekdays:
                time = monday + timedelta(weeks=self.every * number, days=weekday)
                if time >= start:
                    yield time

    def _month_later(self, start: datetime, months: int) -> datetime:
        """The same day of a later month, or its last one."""
        years, month = divmod(start.month - 1 + months, 12)
        year, month = start.year + years, month + 1
        last = calendar.monthrange(year, month)[1]
        return start.replace(year=year, month=month, day=min(start.day, last))
