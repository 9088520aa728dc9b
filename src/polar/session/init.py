"""INIT: installs the harness, starts the runtime, prepares the workspace and opens the slot.

First of all it refuses a task that names a module which the node may not import.
The slot comes last, so that the commands that prepare the workspace have no key.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from polar import registry
from polar.errors import ModuleNotAllowed, boundary
from polar.harnesses.base import Harness, HarnessContext, Launch, NpmPack
from polar.harnesses.programs.compiled import compiled_code
from polar.harnesses.programs.install import install
from polar.runtimes.base import InterceptingRuntime, Program, Runtime, SessionFolders
from polar.runtimes.host.threads import in_thread
from polar.session.files.keep import make_empty
from polar.session.files.patch import note_baseline
from polar.session.files.workspace import base_of, prepare
from polar.session.live import LiveSession
from polar.session.plugins import call_foreign, expect
from polar.types import CallProfile, SessionSockets, Spec


async def init(live: LiveSession) -> None:
    spec = live.task.harness
    with _part(live, "init"):
        _refuse_modules(live)
    with _part(live, "harness"):
        harness = await call_foreign("harness", spec, _LoadedHarness, spec)
        live.harness_version = harness.version
        installed = await install(harness.packs)
        programs = {name: Program(folder.name, folder) for name, folder in installed.items()}
        compiled = await compiled_code(harness.packs, installed)
    runtime = await _start(live, (*programs.values(), *compiled))
    with _part(live, "files"):
        for path, text in live.task.files.items():
            await runtime.put(path, text.encode())
    with _part(live, "prepare"):
        await prepare(runtime, live.task)
    with _part(live, "runtime"):
        sockets = await _listen(live, runtime)
    with _part(live, "gateway"):
        slots = live.services.slots
        live.slot = await slots.open(live.lease, harness.profile, sockets)
        live.teardown.push_async_callback(slots.close, live.session_id)
    with _part(live, "harness"):
        context = HarnessContext(
            instruction=live.task.instruction,
            slot=live.slot,
            session_id=live.session_id,
            workspace=runtime.workspace,
            home=runtime.home,
            installed={name: Path(runtime.program(program)) for name, program in programs.items()},
            intercepted=live.interception.names if live.interception is not None else (),
        )
        live.launch = await call_foreign("harness", spec, harness.launch, context)
    with _part(live, "files"):
        await _write_files(runtime, live.launch, taken=live.task.files)
    with _part(live, "prepare"):
        await note_baseline(live)


def _refuse_modules(live: LiveSession) -> None:
    """Before anything imports one."""
    allowed = live.services.allowed_modules
    if found := registry.module_problems(live.task, allowed, "node.allowed_modules"):
        raise ModuleNotAllowed("; ".join(found))


class _LoadedHarness:
    """A harness with its checked values. It is a plug-in: only `plugins.call` may run this."""

    def __init__(self, spec: Spec) -> None:
        self._harness: Harness = registry.make("harness", spec)
        self._what = f"harness {spec.name!r}"
        self.version = f"{self._harness.name} {self._harness.version}".strip()
        self.profile = expect(CallProfile, self._harness.profile(), f"{self._what}: profile()")
        packs: tuple[object, ...] = tuple(self._harness.requirements())
        self.packs = tuple(expect(NpmPack, pack, f"{self._what}: requirements()") for pack in packs)

    def launch(self, context: HarnessContext) -> Launch:
        launch = expect(Launch, self._harness.launch(context), f"{self._what}: launch()")
        return msgspec.convert(msgspec.to_builtins(launch), Launch)  # also checks the types of its fields


@contextmanager
def _part(live: LiveSession, where: str) -> Generator[None]:
    """Names the part in a failure, and in the message of a time-out."""
    live.init_part = where
    with boundary(where):
        yield


async def _start(live: LiveSession, programs: tuple[Program, ...]) -> Runtime:
    with _part(live, "files"):
        base = await base_of(live.task.workspace)
    with _part(live, "runtime"):
        spec, paths, services = live.task.runtime, live.paths, live.services
        await in_thread(make_empty, paths)
        given = (base, programs, services.launcher, services.permits)
        folders = SessionFolders(live.session_id, paths.place, paths.logs, *given)
        warm = await services.warm.take(spec, folders) if services.warm is not None else None
        runtime: Runtime = warm or await call_foreign("runtime", spec, registry.make, "runtime", spec)
        live.runtime = runtime
        live.teardown.push_async_callback(runtime.stop)
        if warm is None:
            await runtime.start(folders)
    return runtime


async def _listen(live: LiveSession, runtime: Runtime) -> SessionSockets:
    plain, https = await runtime.listener(), None
    if plain is not None:
        live.teardown.callback(plain.close)
    if isinstance(runtime, InterceptingRuntime):
        live.interception = await runtime.interception()
    if live.interception is not None:
        https = live.interception.listener, live.interception.context
        live.teardown.callback(live.interception.listener.close)
    return SessionSockets(plain, https)


async def _write_files(runtime: Runtime, launch: Launch, taken: dict[str, str]) -> None:
    for path, text in launch.workspace_files.items():
        if path not in taken:  # the task's own files win
            await runtime.put(path, text.encode())
    for path, text in launch.home_files.items():
        await runtime.put(path, text.encode(), home=True)
