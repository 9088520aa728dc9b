"""A running session: what each stage produced and later ones need."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from polar import registry
from polar.config import PermitConfig
from polar.harnesses.base import Launch
from polar.runtimes.base import Interception, Runtime
from polar.runtimes.host.supervisor import Launcher
from polar.session.base import PolicyClock, Slots, Watcher
from polar.session.own_runtime import EvaluatorSetup
from polar.session.verdict import Outcome
from polar.session.warm import WarmRuntimes
from polar.store.paths import RunPaths, SessionPaths
from polar.types import (
    Call,
    Certificate,
    Failure,
    Health,
    Lease,
    Score,
    Session,
    Slot,
    Stage,
    TaskRequest,
    Trajectory,
)


@dataclass(frozen=True)
class Services:
    """What the node gives to every session."""

    slots: Slots
    policy: PolicyClock
    paths: RunPaths
    watchers: tuple[Watcher, ...] = ()
    versions: dict[str, str] = field(default_factory=dict[str, str])
    """Of Polar, engine, model and renderer."""
    launcher: Launcher | None = None
    """Starts commands for runtimes without a supervisor of their own."""
    permits: PermitConfig = field(default_factory=PermitConfig)
    """What the operator lets tasks ask of the machine."""
    allowed_modules: tuple[str, ...] = (registry.ANY_MODULE,)
    """Modules that tasks may name, each with all below it."""
    notes_on: Callable[[Sequence[Call]], tuple[str, ...]] = lambda _: ()
    """What a reader of a result should know about the calls, such as what the renderer added to their prompts."""
    warm: WarmRuntimes | None = None
    """Set by the pipeline."""


@dataclass
class LiveSession:
    lease: Lease
    services: Services
    session: Session = field(init=False)
    teardown: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Undoes, in reverse order, what the stages set up."""

    init_part: str = ""
    """The part of INIT that began last."""
    runtime: Runtime | None = None
    harness_version: str = ""
    """Name and version, for the result."""
    launch: Launch | None = None
    slot: Slot | None = None
    interception: Interception | None = None
    """None: the session intercepts no host."""
    evaluator_setup: EvaluatorSetup | None = None
    """Set when RUNNING begins."""
    baseline: str = ""
    """The workspace before the harness ran, as a git tree; set only if the task asks for a patch."""
    kept: list[str] = field(default_factory=list[str])
    """Relative to the session's folder."""
    left_out: list[str] = field(default_factory=list[str])
    """`path: why` of what could not be kept."""
    outcome: Outcome = field(init=False)
    """Facts about the end of the run, as far as they are known."""
    stdout_tail: str = ""
    """Of the harness, as `stderr_tail`; without its key."""
    stderr_tail: str = ""
    timed_out: bool = False
    cancel_reason: str = ""
    """Of who cancelled it; empty: it was not, or no reason was given."""
    policy_updates: int = 0
    """Up to the end of its stages."""
    failure: Failure | None = None
    calls: tuple[Call, ...] = ()
    """Set when they are built into traces."""
    trajectory: Trajectory | None = None
    certificate: Certificate | None = None
    health: Health | None = None
    traces_written: bool = False
    score: Score | None = None
    stage_s: dict[str, float] = field(default_factory=dict[str, float])
    _entered_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.session = self.lease.session
        self.outcome = Outcome(budgets=self.task.budgets)
        self._notify()

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
        self._notify()

    def learn(self, **facts: Any) -> None:
        """Adds facts about the run."""
        self.outcome = msgspec.structs.replace(self.outcome, **facts)

    def fail(self, failure: Failure) -> None:
        """Keeps the first failure: it is the cause of later ones."""
        self.failure = self.failure or failure

    def _notify(self) -> None:
        """An error of a watcher is logged and does not affect the session."""
        for watcher in self.services.watchers:
            try:
                watcher.stage_changed(self.session_id, self.session.stage, time.time())
            except Exception as error:
                problem = {"message": f"{watcher!r} failed to watch a session", "exception": error}
                asyncio.get_running_loop().call_exception_handler(problem)
