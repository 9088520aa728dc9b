"""Checks of a task before it is accepted: nesting, priority, ids, file paths, callback URL, modules, plug-ins.

The server imports no module that a task names, allowed or not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, cast

from yarl import URL

from polar import registry
from polar.server.errors import Invalid
from polar.types import TaskRequest, is_id

MAX_DEPTH = 64
MAX_PRIORITY = 2**31 - 1
MAX_URL = 2048


def refuse_if_wrong(task: TaskRequest, allowed_modules: Sequence[str] = ()) -> None:
    """Imports the classes of Polar's own plug-ins, which may take a while."""
    checks = (_too_deep, _bad_priority, id_problems, file_problems, _bad_callback)
    found = [problem for check in checks for problem in check(task)]
    found = found or [*registry.module_problems(task, allowed_modules, "server.allowed_modules")]
    if found := found or [*registry.plugin_problems(task, only_ours=True)]:
        raise Invalid("; ".join(found))


def _too_deep(task: TaskRequest) -> list[str]:
    options = {f"{kind}.options": getattr(task, kind).options for kind in registry.TASK_KINDS}
    return [
        f"{field}: nested deeper than {MAX_DEPTH} levels"
        for field, value in {"metadata": task.metadata, **options}.items()
        if _depth_exceeds(value)
    ]


def _depth_exceeds(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for one in level for child in _children(one)]
    return bool(level)


def _children(value: Any) -> list[Any]:
    match value:
        case dict():
            return list(cast("dict[str, Any]", value).values())
        case list():
            return cast("list[Any]", value)
        case _:
            return []


def _bad_priority(task: TaskRequest) -> list[str]:
    if abs(task.priority) <= MAX_PRIORITY:
        return []
    return [f"priority: between -{MAX_PRIORITY} and {MAX_PRIORITY} (is {task.priority:.3g})"]


def id_problems(task: TaskRequest) -> list[str]:
    if task.task_id is None or is_id(task.session_id(task.num_samples - 1)):
        return []
    return [f"task_id: {len(task.task_id)} characters leave no room for the sample number; shorten it to 120"]


def file_problems(task: TaskRequest) -> list[str]:
    def leaves_workspace(name: str) -> bool:
        path = PurePosixPath(name)
        return not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name

    return [
        f"files: {name[:60]!r} must be a relative path inside the workspace"
        for name in task.files
        if leaves_workspace(name)
    ]


def _bad_callback(task: TaskRequest) -> list[str]:
    url = task.callback_url
    if url is None or target_of(url) is not None:
        return []
    return [f"callback_url: must be http:// or https:// with a host, in plain ASCII, at most {MAX_URL} characters"]


def target_of(url: str) -> str | None:
    """Scheme, host and port of a callback URL; None if it is not usable."""
    if len(url) > MAX_URL or not re.fullmatch(r"https?://[!-~]+", url, re.IGNORECASE):
        return None
    try:
        parsed = URL(url)
        return f"{parsed.scheme}://{parsed.host}:{parsed.port}" if parsed.host else None
    except ValueError:
        return None
