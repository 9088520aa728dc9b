"""What can be known to be wrong with a task before it is taken: plug-ins, options, paths, ids, the callback."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any, cast

from yarl import URL

from polar import registry
from polar.server.refusals import Invalid
from polar.types import TaskRequest, is_id

PLUGIN_FIELDS = ("runtime", "harness", "builder", "evaluator")
MAX_DEPTH = 64
MAX_PRIORITY = 2**31 - 1
MAX_URL = 2048


def refuse_if_wrong(task: TaskRequest) -> None:
    """Loads the plug-ins' classes, so it may take a while."""
    found = [*_too_deep(task), *_bad_values(task), *_bad_files(task), *_bad_callback(task)]
    found = found or registry.plugin_problems(task)
    if found:
        raise Invalid("; ".join(found))


def _too_deep(task: TaskRequest) -> list[str]:
    values = {
        "metadata": task.metadata,
        **{f"{kind}.options": _spec(task, kind).options for kind in PLUGIN_FIELDS},
    }
    return [
        f"{field}: nested deeper than {MAX_DEPTH} levels"
        for field, value in values.items()
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


def _bad_values(task: TaskRequest) -> list[str]:
    found: list[str] = []
    if abs(task.priority) > MAX_PRIORITY:
        found.append(f"priority: between -{MAX_PRIORITY} and {MAX_PRIORITY} (is {task.priority:.3g})")
    if task.task_id is not None and not is_id(task.session_id(task.num_samples - 1)):
        found.append(f"task_id: {len(task.task_id)} characters are too long to be numbered; shorten it to 120")
    return found


def _bad_files(task: TaskRequest) -> list[str]:
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
    """Scheme, host and port of a callback; None where nothing can be sent there."""
    if len(url) > MAX_URL or not re.fullmatch(r"https?://[!-~]+", url, re.IGNORECASE):
        return None
    try:
        parsed = URL(url)
        return f"{parsed.scheme}://{parsed.host}:{parsed.port}" if parsed.host else None
    except ValueError:
        return None


def _spec(task: TaskRequest, kind: str) -> Any:
    return getattr(task, kind)
