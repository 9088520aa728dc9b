"""Jobs that depend on other jobs."""

import heapq
from collections.abc import Iterable, Mapping
from datetime import timedelta

Depends = Mapping[str, Iterable[str]]
"""A job to those that have to be done before it."""


class CircleError(ValueError):
    """Jobs that wait for each other."""

    def __init__(self, circle: list[str]) -> None:
        super().__init__(" -> ".join([*circle, circle[0]]))
        self.circle = circle


def order(depends: Depends) -> list[str]:
    """All jobs, each after those it depends on; in order of name where there is a choice."""
    before = _complete(depends)
    waiting = {job: len(needed) for job, needed in before.items()}
    after: dict[str, list[str]] = {job: [] for job in before}
    for job, needed in before.items():
        for other in needed:
            after[other].append(job)
    ready = [job for job, number in waiting.items() if number == 0]
    heapq.heapify(ready)
    done: list[str] = []
    while ready:
        job = heapq.heappop(ready)
        done.append(job)
        for other in after[job]:
            waiting[other] -= 1
            if waiting[other] == 0:
                heapq.heappush(ready, other)
    if len(done) < len(before):
        raise CircleError(_circle(before, set(before) - set(done)))
    return done


def finish_times(depends: Depends, takes: Mapping[str, timedelta]) -> dict[str, timedelta]:
    """When each job is done, if each begins as soon as it can."""
    before = _complete(depends)
    done: dict[str, timedelta] = {}
    for job in order(depends):
        begins = max((done[other] for other in before[job]), default=timedelta())
        done[job] = begins + takes.get(job, timedelta())
    return done


def _complete(depends: Depends) -> dict[str, set[str]]:
    """With those that are only named as needed."""
    before = {job: set(needed) for job, needed in depends.items()}
    for needed in list(before.values()):
        for job in needed:
            before.setdefault(job, set())
    return before


def _circle(before: Mapping[str, set[str]], left: set[str]) -> list[str]:
    """A circle among the jobs that are left, from its smallest name."""
    path: list[str] = []
    job = min(left)
    while job not in path:
        path.append(job)
        job = min(other for other in before[job] if other in left)
    circle = path[path.index(job) :]
    first = circle.index(min(circle))
    return circle[first:] + circle[:first]
