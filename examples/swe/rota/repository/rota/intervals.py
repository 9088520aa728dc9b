"""Intervals of time, with their start and without their end."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, order=True)
class Interval:
    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"the interval ends at {self.end}, before its start at {self.start}")

    @property
    def length(self) -> timedelta:
        return self.end - self.start

    def overlaps(self, other: "Interval") -> bool:
        return self.start < other.end and other.start < self.end

    def contains(self, moment: datetime) -> bool:
        return self.start <= moment < self.end


def overlapping(intervals: Iterable[Interval]) -> list[tuple[Interval, Interval]]:
    """All pairs that overlap, in order of their starts."""
    found = sorted(intervals)
    pairs: list[tuple[Interval, Interval]] = []
    for index, first in enumerate(found):
        for second in found[index + 1 :]:
            if second.start >= first.end:
                break
            if first.overlaps(second):
                pairs.append((first, second))
    return pairs


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time in as few intervals as possible, in order."""
    merged: list[Interval] = []
    for interval in sorted(intervals):
        if merged and interval.start <= merged[-1].end:
            merged[-1] = Interval(merged[-1].start, max(merged[-1].end, interval.end))
        else:
            merged.append(interval)
    return merged


def subtract(whole: Interval, parts: Iterable[Interval]) -> list[Interval]:
    """What is left of an interval without some parts, in order."""
    left: list[Interval] = []
    start = whole.start
    for part in merge(parts):
        if not part.overlaps(whole):
            continue
        if part.start > start:
            left.append(Interval(start, part.start))
        start = part.end
    return [*left, Interval(start, whole.end)] if start < whole.end else left
