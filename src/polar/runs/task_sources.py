"""Checks what tasks begin with on this machine, before anything runs: workspace folders, repositories, refs.

Only for tasks that run here. The paths of a submitted task belong to the node that runs it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from polar.data.task_formats import Problems
from polar.errors import PolarError
from polar.session.files.repository import missing_commits
from polar.session.files.workspace import check_base
from polar.types import TaskRequest, WorkspaceSource

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
SHOWN_TASKS = 10


async def check_sources(tasks: Sequence[TaskRequest]) -> None:
    """Raises `ConfigError` with a line for each task whose workspace cannot be made here."""
    sources = {_key(task.workspace): task.workspace for task in tasks if task.workspace is not None}
    found = await _problems(sources.values())
    problems = Problems("tasks")
    for task in tasks:
        if task.workspace is not None and (why := found.get(_key(task.workspace))):
            problems.add(f"task {task.task_id}", why)
    problems.raise_if_any()


def _key(source: WorkspaceSource) -> str:
    return source.model_dump_json()


async def _problems(sources: Iterable[WorkspaceSource]) -> dict[str, str]:
    """Commits of one repository are looked up together: a set may have hundreds of them."""
    found: dict[str, str] = {}
    by_repository = defaultdict[str, list[WorkspaceSource]](list)
    for source in sources:
        if source.git is not None and COMMIT.fullmatch(source.ref) and Path(source.git).exists():
            by_repository[source.git].append(source)
        elif why := await _problem(source):
            found[_key(source)] = why
    for path, some in by_repository.items():
        found |= await _without_commit(Path(path).resolve(), some)
    return found


async def _problem(source: WorkspaceSource) -> str:
    """Empty: none."""
    try:
        await check_base(source)
    except PolarError as error:
        return str(error)
    return ""


async def _without_commit(path: Path, sources: Sequence[WorkspaceSource]) -> dict[str, str]:
    try:
        missing = await missing_commits(path, [source.ref for source in sources])
    except PolarError as error:
        return {_key(source): str(error) for source in sources}
    return {_key(source): f"{path} has no commit {source.ref}" for source in sources if source.ref in missing}


def shown_ids(tasks: Sequence[TaskRequest]) -> str:
    """The ids of the first few."""
    more = len(tasks) - SHOWN_TASKS
    ids = ", ".join(str(task.task_id) for task in tasks[:SHOWN_TASKS])
    return f"{ids} and {more} more" if more > 0 else ids
