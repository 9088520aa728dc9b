"""A session that stands at its workbench: a started local runtime, no gateway and no harness."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from polar.runtimes.base import Command, Finished
from polar.session.live import LiveSession
from polar.types import TaskRequest

Begin = Callable[..., Awaitable[LiveSession]]
"""`await begin(base, keep={...})`: a live session whose workspace begins with `base`."""
IDENTITY = {
    f"GIT_{who}_{what}": f"{what.lower()}@test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}


def task_of(**fields: Any) -> TaskRequest:
    return TaskRequest.model_validate({"task_id": "t", "instruction": "x", **fields})


async def sh(live: LiveSession, script: str) -> Finished:
    """As an agent would, in the workspace."""
    assert live.runtime is not None
    finished = await live.runtime.exec(Command(("sh", "-c", script), IDENTITY))
    assert finished.exit_code == 0, finished.stderr_tail
    return finished


def workspace_of(live: LiveSession) -> Path:
    """As the node sees it."""
    return live.paths.place / "work"
