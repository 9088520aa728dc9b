"""Those who watch a node's sessions without taking part: its metrics, the traces of OpenTelemetry.

An observer that fails is logged, and the session goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, Protocol

from polar.session.base import SessionSource
from polar.types import EndedCall, Lease, SessionResult, Stage, Trajectory

P = ParamSpec("P")


class SessionObserver(Protocol):
    """All methods are called on the event loop, and return at once."""

    def leased(self, lease: Lease) -> None:
        """An attempt begins."""
        ...

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None: ...

    def call_ended(self, call: EndedCall) -> None: ...

    def ended(self, result: SessionResult) -> None:
        """The attempt is over, also one that will run again elsewhere."""
        ...

    def collect(self) -> Iterable[Any]:
        """What it adds to the node's metrics: families of `prometheus_client`."""
        ...


class Observers:
    """Several as one: a watcher of stages, and of calls by its `call_ended`."""

    def __init__(self, observers: Sequence[SessionObserver]) -> None:
        self._observers = tuple(observers)

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        for observer in self._observers:
            _notify(observer.stage_changed, session_id, stage, at)

    def call_ended(self, call: EndedCall) -> None:
        for observer in self._observers:
            _notify(observer.call_ended, call)

    def leased(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            for observer in self._observers:
                _notify(observer.leased, lease)

    def ended(self, result: SessionResult) -> None:
        for observer in self._observers:
            _notify(observer.ended, result)


class ObservedSource:
    """A source whose leases and results observers see."""

    def __init__(self, source: SessionSource, observers: Observers) -> None:
        self._source = source
        self._observers = observers

    async def lease(self, room: int) -> list[Lease]:
        leases = await self._source.lease(room)
        self._observers.leased(leases)
        return leases

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        self._observers.ended(result)
        await self._source.report(result, trajectory)


def _notify(method: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    try:
        method(*args, **kwargs)
    except Exception as error:
        problem = {"message": f"{method!r} failed to observe a session", "exception": error}
        asyncio.get_running_loop().call_exception_handler(problem)
