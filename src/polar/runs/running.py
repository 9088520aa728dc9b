"""Tasks run on this machine, from the first set-up to the last trace: what `polar run` and `polar.run` share."""

from __future__ import annotations

import logging
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from polar import config as configuration
from polar import registry
from polar.config import Config, PermitConfig
from polar.data.source import EarlierSessions, TaskFileSource
from polar.data.stored_tasks import PickedTasks, StoredTasks
from polar.data.tasks import check_tasks, read_tasks
from polar.errors import (
    ConfigError,
    FieldProblem,
    FieldsRefused,
    NotPermitted,
    RuntimeFailure,
    UnknownPlugin,
)
from polar.harnesses.base import NpmPack
from polar.harnesses.programs.install import cached, install
from polar.node import Node, open_node, sweep
from polar.runs.event_loop import allow_open_files, run_apart
from polar.runs.resume import write_tasks
from polar.runs.state import held, record_of
from polar.runs.stored import StoredRun, read_run_async
from polar.runs.task_sources import check_sources, shown_ids
from polar.runtimes.builtin import BuiltinRuntime
from polar.runtimes.options import RuntimeOptions
from polar.session.base import SessionSource, Watcher
from polar.store.paths import RunPaths
from polar.types import SessionResult, Spec, Stage, TaskRequest, Trajectory

Tasks = str | Path | Sequence[TaskRequest | Mapping[str, Any]]
"""A task file, or the tasks themselves; a mapping has the fields of a `TaskRequest`."""
ConfigSource = Config | Mapping[str, Any] | str | Path | None
"""The config, its values, or a polar.toml. None: ./polar.toml if there is one, else the defaults."""
OnResult = Callable[[SessionResult], None]

LOGGER = logging.getLogger("polar.runs")


def run(
    tasks: Tasks,
    *,
    config: ConfigSource = None,
    runs_dir: str | Path | None = None,
    samples: int | None = None,
    on_result: OnResult | None = None,
) -> StoredRun:
    """Runs tasks in this process, like `polar run`, and returns the stored run with their results and traces.

    Works in scripts and in notebooks. A session that fails has its failure on its result; wrong tasks or a wrong
    config raise `ConfigError` before anything runs. Ctrl-C cancels the sessions, keeps what was captured and
    raises `KeyboardInterrupt`; `polar.load_run()` opens what was kept.

        run = polar.run("tasks.toml", samples=4)
        print([result.reward for result in run.results])

    `samples`: sessions of each task, whatever the tasks say. `on_result`: called with each result as it comes, in
    another thread.
    """
    allow_open_files()
    return run_apart(run_async(tasks, config=config, runs_dir=runs_dir, samples=samples, on_result=on_result))


async def run_async(
    tasks: Tasks,
    *,
    config: ConfigSource = None,
    runs_dir: str | Path | None = None,
    samples: int | None = None,
    on_result: OnResult | None = None,
) -> StoredRun:
    """`run` on the caller's event loop. Cancelling it cancels the sessions and keeps what was captured."""
    chosen = _config(config)
    todo = tasks_of(tasks, samples)
    await check_sources(todo)
    paths = RunPaths.create(Path(runs_dir) if runs_dir else chosen.runs_dir)
    await run_tasks(chosen, paths, todo, _Callback(on_result))
    return await read_run_async(paths)


class PhaseObserver(Watcher, Protocol):
    def phase(self, what: str) -> None:
        """What happens before the first session; empty: sessions run from now on."""
        ...


class CallCounts(NamedTuple):
    """Of a run that goes on."""

    calls: int
    tokens: int
    """Sampled, of calls that have ended."""
    generating: int
    """Generations under way."""


@runtime_checkable
class CallsFollower(Protocol):
    """An observer that shows how fast the model is."""

    def follow(self, counts: Callable[[], CallCounts]) -> None: ...


class RunObserver(PhaseObserver, Protocol):
    """Sees the progress of a run."""

    def finished(self, result: SessionResult) -> None: ...


class _Callback:
    """The `RunObserver` of a program, which only wants results."""

    def __init__(self, on_result: OnResult | None) -> None:
        self._on_result = on_result

    def phase(self, what: str) -> None: ...

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None: ...

    def finished(self, result: SessionResult) -> None:
        if self._on_result is not None:
            try:
                self._on_result(result)
            except Exception:  # the user's code; the sessions go on
                LOGGER.exception("on_result failed for session %s", result.session_id)


async def run_tasks(
    config: Config,
    paths: RunPaths,
    tasks: Sequence[TaskRequest],
    observer: RunObserver,
    earlier: EarlierSessions | None = None,
) -> None:
    """All sessions of the tasks; the journal and the files of the run hold the outcome. `earlier`: what a run that
    goes on has of them already."""
    ended = set[str]() if earlier is None else {*earlier.finished, *earlier.attempts}

    async def report(result: SessionResult, _: Trajectory | None) -> None:
        ended.add(result.session_id)
        observer.finished(result)

    write_tasks(paths, tasks)
    source = TaskFileSource(tasks, report, earlier)
    await serve_source(config, paths, tasks, source, observer, lambda: len(ended))


async def serve_source(
    config: Config,
    paths: RunPaths,
    tasks: Sequence[TaskRequest],
    source: SessionSource,
    observer: PhaseObserver,
    journalled: Callable[[], int],
) -> None:
    """All sessions of the source, on a node in this process. `tasks`: what its sessions are of. `journalled`: how
    many sessions the journal has at the end."""
    with held(paths, record_of(paths, config, tasks)) as run:
        await sweep(paths.root.parent)
        await prepare_machine(tasks, config.permits, observer.phase)
        observer.phase(f"Starting the engine {config.engine.name}{to_download(config)}")
        async with open_node(config, paths) as node:
            run.begin(node.versions)
            if isinstance(observer, CallsFollower):
                observer.follow(partial(_counts, node))
            observer.phase("")
            interrupted = True
            try:
                await node.serve(source, (observer,))
                interrupted = False
            finally:
                run.end(journalled(), interrupted=interrupted)


def _counts(node: Node) -> CallCounts:
    return CallCounts(node.journal.calls_added, node.journal.tokens_added, node.gate.under_way)


def config_problems(config: Config) -> list[FieldProblem]:
    """Engine and renderer of a config that are unknown or have wrong options, found before anything starts."""
    found: list[FieldProblem] = []
    for kind, spec, above in (("engine", config.engine, ()), ("renderer", config.model.renderer, ("model",))):
        try:
            if spec is not None:
                registry.options_of(kind, registry.find(kind, spec.name), spec.options)
        except FieldsRefused as error:
            found += [FieldProblem((*above, *each.field), each.partition(": ")[2]) for each in error.problems]
        except UnknownPlugin as error:
            found.append(FieldProblem((*above, kind, "name"), str(error)))
    return found


def to_download(config: Config) -> str:
    """What the engine downloads when it starts, in brackets; empty: nothing."""
    ask: Callable[[], str] | None = getattr(registry.make("engine", config.engine), "to_download", None)
    what = ask() if ask else ""
    return f" (downloads {what}, once)" if what else ""


def tasks_of(tasks: Tasks, samples: int | None) -> StoredTasks:
    """Checked, each with an id."""
    found = read_tasks(Path(tasks)) if isinstance(tasks, str | Path) else check_tasks(tasks)
    if samples is None:
        return found
    given = {"num_samples": samples}
    changed = (TaskRequest.model_validate(task.model_dump() | given) for task in found)
    return StoredTasks(changed, found.origin)


async def prepare_machine(
    tasks: Sequence[TaskRequest], permits: PermitConfig, tell: Callable[[str], None]
) -> None:
    """Before the first session: fails if a runtime is missing here or a task asks for what the operator has not
    permitted. Downloads the harnesses and images, so that no session's set-up time includes a download."""
    for name in sorted({task.runtime.name for task in tasks}):
        if missing := await registry.find("runtime", name).lacking():
            raise ConfigError(f"runtime {name}: {missing}")
    users: dict[str, array[int]] = defaultdict(lambda: array("Q"))
    harnesses: dict[str, Spec] = {}
    for position, task in enumerate(tasks):
        users[task.runtime.model_dump_json()].append(position)
        harnesses.setdefault(task.harness.model_dump_json(), task.harness)
    for positions in users.values():
        some = PickedTasks(tasks, positions)
        runtime = registry.make("runtime", some[0].runtime)
        if isinstance(runtime, BuiltinRuntime):
            await _provide(cast("BuiltinRuntime[RuntimeOptions]", runtime), some, permits, tell)
    packs: set[NpmPack] = {
        pack for spec in harnesses.values() for pack in registry.make("harness", spec).requirements()
    }
    if missing := sorted(pack.package for pack in packs if cached(pack) is None):
        tell(f"Downloading {', '.join(missing)} (once)")
    await install(tuple(sorted(packs, key=lambda pack: pack.package)))


async def _provide(
    runtime: BuiltinRuntime[RuntimeOptions],
    tasks: Sequence[TaskRequest],
    permits: PermitConfig,
    tell: Callable[[str], None],
) -> None:
    """An image that cannot be had fails only the sessions that need it: they report why."""
    name = tasks[0].runtime.name
    try:
        await runtime.provide(permits, tell)
    except NotPermitted as error:
        raise ConfigError(f"runtime {name}: {error}") from error
    except RuntimeFailure as error:
        LOGGER.warning("runtime %s: %s; tasks that will fail: %s", name, error, shown_ids(tasks))


def _config(source: ConfigSource) -> Config:
    if isinstance(source, Config):
        return source
    if isinstance(source, Mapping):
        return configuration.parse(source, "config")
    return configuration.load(None if source is None else Path(source))
