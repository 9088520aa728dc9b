"""Opening hours, and how long work takes if it is only done while open."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta


@dataclass(frozen=True)
class WorkingHours:
    opens: time = time(9)
    closes: time = time(17)
    weekdays: frozenset[int] = frozenset(range(5))
    """0 is Monday."""
    holidays: frozenset[date] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        if self.closes <= self.opens or not self.weekdays:
            raise ValueError("there are no working hours: they never open")

    def with_holidays(self, days: Iterable[date]) -> "WorkingHours":
        """The same hours, closed on some more days."""
        return WorkingHours(self.opens, self.closes, self.weekdays, self.holidays | set(days))

    def is_working_day(self, day: date) -> bool:
        return day.weekday() in self.weekdays and day not in self.holidays

    def is_open(self, moment: datetime) -> bool:
        return self.is_working_day(moment.date()) and self.opens <= moment.time() < self.closes

    def next_open(self, moment: datetime) -> datetime:
        """The first time from `moment` on at which it is open."""
        if self.is_open(moment):
            return moment
        if moment.time() >= self.closes or not self.is_working_day(moment.date()):
            moment = self._opening(moment.date() + timedelta(days=1), moment)
        else:
            moment = self._opening(moment.date(), moment)
        while not self.is_working_day(moment.date()):
            moment = self._opening(moment.date() + timedelta(days=1), moment)
        return moment

    def add(self, start: datetime, work: timedelta) -> datetime:
        """The time at which this much work is done."""
        if work < timedelta():
            raise ValueError("work cannot take less than no time")
        now = self.next_open(start)
        while True:
            closing = datetime.combine(now.date(), self.closes, now.tzinfo)
            if now + work <= closing:
                return now + work
            work -= closing - now
            now = self.next_open(closing)

    def _opening(self, day: date, like: datetime) -> datetime:
        return datetime.combine(day, self.opens, like.tzinfo)
