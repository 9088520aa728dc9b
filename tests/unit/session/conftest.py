from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from bench import Begin, task_of

from polar.runtimes.base import SessionFolders
from polar.runtimes.local.runtime import LocalOptions, LocalRuntime
from polar.session.live import LiveSession, Services
from polar.store.paths import RunPaths
from polar.types import Lease, Session


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    begun: list[LiveSession] = []

    async def begin(base: Path | None = None, **fields: Any) -> LiveSession:
        paths = RunPaths(tmp_path / "run")
        services = Services(slots=cast("Any", None), policy=cast("Any", None), paths=paths)
        session = Session(session_id=f"t-{len(begun)}", task_id="t", index=len(begun))
        live = LiveSession(Lease(session=session, task=task_of(**fields)), services)
        live.runtime = LocalRuntime(LocalOptions(kill_grace_s=0.2))
        begun.append(live)
        live.paths.create()
        await live.runtime.start(SessionFolders(live.session_id, live.paths.place, live.paths.logs, base))
        return live

    yield begin
    for live in begun:
        assert live.runtime is not None
        await live.runtime.stop()
