"""The initial workspace: a folder or a repository of the node, then the task's prepare steps."""

from __future__ import annotations

import asyncio
from pathlib import Path

from polar.back_off import BackOff
from polar.errors import PolarError
from polar.runtimes.base import Command, Finished, PreparingRuntime, Runtime
from polar.session.files.repository import check_ref, checkout_of
from polar.types import PrepareStep, TaskRequest, WorkspaceSource

PAUSE_S = 0.5
"""Pause before the second try of a step; it doubles with each further one."""
LONGEST_PAUSE_S = 10.0
SHOWN_OUTPUT = 1000


class WorkspaceError(PolarError):
    """The workspace cannot be prepared as the task asks."""


async def base_of(source: WorkspaceSource | None) -> Path | None:
    """The folder that the workspace starts from, shared by sessions; None: an empty one."""
    if source is None:
        return None
    if source.git is not None:
        return await checkout_of(_found(source.git, "workspace.git"), source.ref)
    return _folder_of(source)


async def check_base(source: WorkspaceSource) -> None:
    """Raises a `PolarError` if `base_of` would; makes no checkout."""
    if source.git is not None:
        await check_ref(_found(source.git, "workspace.git"), source.ref)
    else:
        _folder_of(source)


async def prepare(runtime: Runtime, task: TaskRequest, *, pause_s: float = PAUSE_S) -> None:
    for number, step in enumerate(task.prepare, start=1):
        await _do(runtime, step, number, pause_s)
    await end_preparation(runtime)


async def end_preparation(runtime: Runtime) -> None:
    """Nothing that runs from now on has the network that only prepare steps may use."""
    if isinstance(runtime, PreparingRuntime):
        await runtime.prepared()


def _found(path: str, field: str) -> Path:
    try:
        return Path(path).resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in it; links in a circle
        reason = "not on this node" if isinstance(error, FileNotFoundError) else str(error)
        raise WorkspaceError(f"{field}: {path}: {reason}") from error


def _folder_of(source: WorkspaceSource) -> Path:
    folder = _found(source.folder or "", "workspace.folder")
    if not folder.is_dir():
        raise WorkspaceError(f"workspace.folder: {folder} is not a folder")
    return folder


async def _do(runtime: Runtime, step: PrepareStep, number: int, pause_s: float) -> None:
    problem, back_off = "", BackOff(pause_s, LONGEST_PAUSE_S, jitter=0)
    for again in range(step.retries + 1):
        if again:
            await asyncio.sleep(back_off.next_s())
        problem = await _try(runtime, step, number)
        if not problem:
            return
    tries = f", tried {step.retries + 1} times" if step.retries else ""
    raise WorkspaceError(f"prepare step {number} ({_short(step.run)}) {problem}{tries}")


async def _try(runtime: Runtime, step: PrepareStep, number: int) -> str:
    """The problem; empty: none."""
    command = Command(("sh", "-c", step.run), step.env, log_name=f"prepare-{number}")
    deadline = asyncio.timeout(step.timeout_s)
    try:
        async with deadline:
            finished = await runtime.exec(command)
    except TimeoutError:
        if not deadline.expired():
            raise
        return f"did not finish within {step.timeout_s:g} s"
    return "" if finished.exit_code == 0 else _words(finished)


def _words(finished: Finished) -> str:
    code = finished.exit_code
    how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
    output = finished.stderr_tail.strip() or finished.stdout_tail.strip()
    return f"{how}: {output[-SHOWN_OUTPUT:]}" if output else f"{how} and printed nothing"


def _short(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= 60 else f"{line[:57]}..."
