"""What the workspace begins with: a folder or a repository of the node, then the task's prepare steps."""

from __future__ import annotations

from pathlib import Path

from polar.runtimes.base import Runtime
from polar.types import TaskRequest, WorkspaceSource


async def base_of(source: WorkspaceSource | None) -> Path | None:
    """The folder to begin with, shared by all sessions that begin with it."""
    if source is None:
        return None
    raise NotImplementedError


async def prepare(runtime: Runtime, task: TaskRequest) -> None:
    for step in task.prepare:
        raise NotImplementedError(step.run)
