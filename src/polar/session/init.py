"""INIT: the runtime is started, the task's files laid in, the harness installed and its slot opened."""

from __future__ import annotations

from polar import registry
from polar.errors import boundary
from polar.harnesses.base import Harness, HarnessContext
from polar.harnesses.install import install
from polar.runtimes.base import Place, Runtime
from polar.session.live import LiveSession


async def init(live: LiveSession) -> None:
    task, slots = live.task, live.services.slots
    with boundary("harness"):
        harness: Harness = registry.make("harness", task.harness)
        live.harness = harness
        installed = await install(harness.requirements())
    with boundary("runtime"):
        runtime: Runtime = registry.make("runtime", task.runtime)
        live.runtime = runtime
        live.teardown.push_async_callback(runtime.stop)
        paths = live.paths.create()
        await runtime.start(Place(session_id=live.session_id, root=paths.place, logs=paths.logs))
    with boundary("gateway"):
        slot = await slots.open(live.lease, harness.profile())
        live.slot = slot
        live.teardown.push_async_callback(slots.close, live.session_id)
    with boundary("harness"):
        live.launch = harness.launch(
            HarnessContext(
                instruction=task.instruction,
                slot=slot,
                session_id=live.session_id,
                workspace=runtime.workspace,
                home=runtime.home,
                installed=installed,
            )
        )
    with boundary("files"):
        # The task's files come last: what the task says about its workspace is what stands there.
        for path, text in {**live.launch.workspace_files, **task.files}.items():
            await runtime.put(path, text.encode())
        for path, text in live.launch.home_files.items():
            await runtime.put(path, text.encode(), home=True)
