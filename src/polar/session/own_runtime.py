"""A session's evaluator, made once, and the runtime of its own that it may ask for.

That runtime begins as the session's did and the agent never was in it. It starts in the background while the agent
works, so that POSTRUN finds it ready, and it takes no worker of a stage. Beside an agent that its runtime does not
contain, it starts after the agent is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from polar import registry
from polar.back_off import BackOff
from polar.config import PermitConfig
from polar.errors import ConfigError, PolarError, RuntimeFailure, SessionError, boundary, failure_of
from polar.evaluators.base import Evaluator, RuntimeEvaluator, RuntimeRequest
from polar.runtimes.base import Runtime, SessionFolders
from polar.runtimes.host.supervisor import Launcher
from polar.runtimes.host.threads import in_thread
from polar.runtimes.options import RuntimeOptions
from polar.session.files.workspace import WorkspaceError, base_of, end_preparation, prepare
from polar.session.plugins import call_foreign, expect
from polar.store.paths import SessionPaths
from polar.types import Failure, Spec, TaskRequest

T = TypeVar("T")

TRIES = 3
"""How often the start is tried in all. The task's prepare steps have retries of their own."""
PAUSE_S = 1.0
"""Before the second try; it doubles with each further one."""
LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True)
class EvaluatorSite:
    """Where a session's evaluator works."""

    session_id: str
    task: TaskRequest
    paths: SessionPaths
    launcher: Launcher | None = None
    permits: PermitConfig = field(default_factory=PermitConfig)

    @property
    def folders(self) -> SessionFolders:
        """Of the evaluator's own runtime."""
        paths, name = self.paths, f"{self.session_id}.evaluator"
        return SessionFolders(
            name, paths.evaluator_place, paths.evaluator_logs, launcher=self.launcher, permits=self.permits
        )


@dataclass(frozen=True)
class PreparedEvaluator:
    evaluator: Evaluator
    own_runtime: Runtime | None
    """Started; None: the evaluator did not ask for one."""


class EvaluatorSetup:
    """Makes the evaluator and starts its runtime, each once."""

    def __init__(self, site: EvaluatorSite, pool: asyncio.Semaphore) -> None:
        self._site = site
        self._pool = pool
        self._work: asyncio.Task[PreparedEvaluator] | None = None
        self._teardown = AsyncExitStack()

    def begin(self) -> None:
        """In the background. Later calls change nothing."""
        if self._work is None:
            self._work = asyncio.create_task(self._set_up(), name=f"evaluator of {self._site.session_id}")

    async def ready(self) -> PreparedEvaluator:
        """Waits for it, and begins it if that has not happened. Raises a `SessionError` if there is none: that is
        no fault of the agent."""
        self.begin()
        assert self._work is not None
        await asyncio.wait([self._work])
        return self._work.result()

    async def end(self) -> None:
        """Breaks it off if it is under way, and removes what it has started."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
            if not self._work.cancelled():
                self._work.exception()  # who needed it has seen it; otherwise it matters to none
        await self._teardown.aclose()

    async def _set_up(self) -> PreparedEvaluator:
        evaluator, request = await self._in_time("the evaluator was not made", self._make())
        if request is None:
            return PreparedEvaluator(evaluator, None)
        async with self._pool:
            runtime = await self._in_time("the evaluator's own runtime was not started", self._start(request))
        return PreparedEvaluator(evaluator, runtime)

    async def _in_time(self, otherwise: str, work: Awaitable[T]) -> T:
        budget_s = self._site.task.budgets.evaluator_init_s
        try:
            with boundary("evaluator"):
                async with asyncio.timeout(budget_s):
                    return await work
        except TimeoutError as error:
            message = f"{otherwise} within {budget_s:g} s (budgets.evaluator_init_s)"
            raise SessionError(Failure(where="evaluator", type="TimedOut", message=message)) from error

    async def _make(self) -> tuple[Evaluator, RuntimeRequest | None]:
        spec, task = self._site.task.evaluator, self._site.task
        evaluator: Evaluator = await call_foreign("evaluator", spec, registry.make, "evaluator", spec)
        return evaluator, await call_foreign("evaluator", spec, request_of, evaluator, task)

    async def _start(self, request: RuntimeRequest) -> Runtime:
        site, spec = self._site, without_network(request.runtime or self._site.task.runtime)
        request = msgspec.structs.replace(request, runtime=spec)
        back_off, tries = BackOff(PAUSE_S, LONGEST_PAUSE_S), 1
        while True:
            try:
                starting = runtime_from_base(site.task, request, site.folders)
                return await self._teardown.enter_async_context(starting)
            except (ConfigError, WorkspaceError) as error:  # the same in each try
                raise SessionError(_not_started(error, tries)) from error
            except (Exception, SystemExit) as error:
                if tries == TRIES:
                    raise SessionError(_not_started(error, tries)) from error
            tries += 1
            await asyncio.sleep(back_off.next_s())


@asynccontextmanager
async def runtime_from_base(
    task: TaskRequest, request: RuntimeRequest, folders: SessionFolders
) -> AsyncGenerator[Runtime]:
    """A runtime that begins as a session of the task does."""
    base = await base_of(request.workspace or task.workspace)
    spec = request.runtime or task.runtime
    await in_thread(folders.logs.mkdir, parents=True, exist_ok=True)
    runtime: Runtime = await call_foreign("runtime", spec, registry.make, "runtime", spec)
    try:
        await runtime.start(msgspec.structs.replace(folders, base=base))
        if request.with_files:
            for path, text in task.files.items():
                await runtime.put(path, text.encode())
            await prepare(runtime, task)
        else:
            await end_preparation(runtime)
        yield runtime
    finally:
        await runtime.stop()


def request_of(evaluator: Evaluator | RuntimeEvaluator, task: TaskRequest) -> RuntimeRequest | None:
    wants = getattr(evaluator, "wants_runtime", None)
    request = None if wants is None else wants(task)
    return None if request is None else expect(RuntimeRequest, request, "the evaluator's wants_runtime()")


def without_network(spec: Spec) -> Spec:
    """The same runtime without network, if the spec leaves that open and the runtime can enforce it. It intercepts
    nothing: only a harness calls a model."""
    spec = Spec(name=spec.name, options={name: spec.options[name] for name in spec.options if name != "intercept"})
    options = _options_of(spec)
    if options is None:
        raise RuntimeFailure(f"runtime {spec.name!r} cannot be an evaluator's: its Options are no RuntimeOptions")
    if options.network is None and "none" in options.offered.networks:
        return Spec(name=spec.name, options=spec.options | {"network": "none"})
    return spec


def is_contained(spec: Spec) -> bool:
    """Whether a session in this runtime can reach neither files nor processes of the node."""
    try:
        options = _options_of(spec)
    except PolarError:  # INIT reports it
        return False
    return options is not None and {"files", "processes"} <= set(options.offered.contains)


def _options_of(spec: Spec) -> RuntimeOptions | None:
    options = registry.options_of("runtime", registry.find("runtime", spec.name), spec.options)
    return options if isinstance(options, RuntimeOptions) else None


def _not_started(error: BaseException, tries: int) -> Failure:
    failure = error.failure if isinstance(error, SessionError) else failure_of("evaluator", error)
    again = f", tried {tries} times" if tries > 1 else ""
    message = f"the evaluator's own runtime could not be started{again}: {failure.message}"
    return failure.model_copy(update={"where": "evaluator", "message": message[:4000], "agent": False})
