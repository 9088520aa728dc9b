"""A runtime of the evaluator's own: started from the task's base, never touched by the agent."""

from __future__ import annotations

from polar import registry
from polar.errors import RuntimeFailure
from polar.evaluators.base import Evaluator, RuntimeEvaluator, RuntimeRequest
from polar.runtimes.base import Runtime, SessionFolders
from polar.runtimes.host.threads import in_thread
from polar.runtimes.options import RuntimeOptions
from polar.session.files.workspace import base_of, prepare
from polar.session.live import LiveSession
from polar.session.plugins import call_foreign
from polar.types import Spec, TaskRequest


def request_of(evaluator: Evaluator | RuntimeEvaluator, task: TaskRequest) -> RuntimeRequest | None:
    wants = getattr(evaluator, "wants_runtime", None)
    return None if wants is None else wants(task)


async def start_own_runtime(live: LiveSession, request: RuntimeRequest) -> Runtime:
    """Raises if it cannot be started: that is no fault of the agent."""
    task = live.task
    base = await base_of(request.workspace or task.workspace)
    spec = _without_network(request.runtime or task.runtime)
    runtime: Runtime = await call_foreign("runtime", spec, registry.make, "runtime", spec)
    live.teardown.push_async_callback(runtime.stop)
    paths = live.paths
    await in_thread(paths.evaluator_logs.mkdir, parents=True, exist_ok=True)
    name = f"{live.session_id}.evaluator"
    folders = SessionFolders(name, paths.evaluator_place, paths.evaluator_logs, base, (), live.services.launcher)
    await runtime.start(folders)
    if request.with_files:
        for path, text in task.files.items():
            await runtime.put(path, text.encode())
        await prepare(runtime, task)
    return runtime


def _without_network(spec: Spec) -> Spec:
    options = registry.options_of("runtime", registry.find("runtime", spec.name), spec.options)
    if not isinstance(options, RuntimeOptions):
        raise RuntimeFailure(f"runtime {spec.name!r} cannot be an evaluator's: its Options are no RuntimeOptions")
    if options.network is None and "none" in options.offered.networks:
        return Spec(name=spec.name, options=spec.options | {"network": "none"})
    return spec
