"""A session while it lives: what each stage made and the next one needs."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from polar.harnesses.base import Launch
from polar.runtimes.base import Runtime
from polar.runtimes.host.supervisor import Launcher
from polar.session.base import PolicyClock, Slots, Watcher
from polar.session.verdict import Outcome
from polar.store.paths import RunPaths, SessionPaths
from polar.types import Certificate, Failure, Lease, Score, Session, Slot, Stage, TaskRequest, Trajectory


@dataclass(frozen=True)
class Services:
    """What the node gives to every session."""

    slots: Slots
    policy: PolicyClock
    paths: RunPaths
    watchers: tuple[Watcher, ...] = ()
    versions: dict[str, str] = field(default_factory=dict[str, str])
    """Of the node's own parts: Polar, engine, model, renderer."""
    launcher: Launcher | None = None
    """Starts the commands of runtimes that have no supervisor of their own."""


@dataclass
class LiveSession:
    lease: Lease
    services: Services
    session: Session = field(init=False)
    teardown: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Undoes, last first, what the stages set up."""

    set_up: str = ""
    """The part of INIT that was begun last."""
    runtime: Runtime | None = None
    harness_version: str = ""
    """Its name and version, as the result has them."""
    launch: Launch | None = None
    slot: Slot | None = None
    baseline: str = ""
    """How the workspace stood before the harness ran, as a tree of git; only where a patch is wanted."""
    kept: list[str] = field(default_factory=list[str])
    """Relative to the session's folder."""
    left_out: list[str] = field(default_factory=list[str])
    """`path: why` of what was to be kept and is not."""
    outcome: Outcome = field(init=False)
    """How the run ended, as far as it is known."""
    timed_out: bool = False
    policy_updates: int = 0
    """That it has lived through when its stages ended."""
    failure: Failure | None = None
    trajectory: Trajectory | None = None
    certificate: Certificate | None = None
    traces_written: bool = False
    score: Score | None = None
    stage_s: dict[str, float] = field(default_factory=dict[str, float])
    _entered_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.session = self.lease.session
        self.outcome = Outcome(budgets=self.task.budgets)
        self._tell()

    @property
    def task(self) -> TaskRequest:
        return self.lease.task

    @property
    def session_id(self) -> str:
        return self.session.session_id

    @cached_property
    def paths(self) -> SessionPaths:
        return self.services.paths.session(self.session_id)

    def advance(self, stage: Stage) -> None:
        now = time.monotonic()
        self.stage_s[self.session.stage] = round(now - self._entered_at, 4)
        self.session = self.session.advance(stage)
        self._entered_at = now
        self._tell()

    def learn(self, **facts: Any) -> None:
        """Adds to what is known of the run."""
        self.outcome = msgspec.structs.replace(self.outcome, **facts)

    def fail(self, failure: Failure) -> None:
        """The first failure is the cause; what follows from it does not replace it."""
        self.failure = self.failure or failure

    def _tell(self) -> None:
        """A watcher that breaks is heard of, but it is no part of the session."""
        for watcher in self.services.watchers:
            try:
                watcher.stage_changed(self.session_id, self.session.stage, time.time())
            except Exception as error:
                problem = {"message": f"{watcher!r} failed to watch a session", "exception": error}
                asyncio.get_running_loop().call_exception_handler(problem)
