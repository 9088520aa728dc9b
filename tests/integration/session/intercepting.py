"""Sessions that intercept the hosts of model providers, with this machine's Python and packages inside."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

import openai
from workshop import Workshop, shell_task

from polar import registry
from polar.runtimes.base import Runtime
from polar.types import TaskRequest
from skips import skip_without_runtime

PYTHON = Path(sys.base_prefix).resolve()
PACKAGES = Path(openai.__file__).parent.parent.resolve()
INSIDE = f"/opt/python/bin/python{sysconfig.get_python_version()}"


OPTIONS = ("image", "prepare_network")
"""Of the runtime; other fields are the task's."""


async def intercepting_task(runtime: str, command: str, intercept: Any = True, **fields: Any) -> TaskRequest:
    """A task whose command may use `$PYTHON`; skips the test where the runtime is missing."""
    kind: type[Runtime] = registry.find("runtime", runtime)
    skip_without_runtime(runtime, await kind.lacking())
    mounts = [
        {"source": str(PYTHON), "target": "/opt/python"},
        {"source": str(PACKAGES), "target": "/opt/packages"},
    ]
    chosen = {name: fields.pop(name) for name in OPTIONS if name in fields}
    options = {"intercept": intercept, "mounts": mounts, **chosen}
    paths = f"LD_LIBRARY_PATH=/opt/python/lib PYTHONPATH=/opt/packages PYTHON={INSIDE}"
    script = f"export PYTHONDONTWRITEBYTECODE=1 {paths}; {command}"
    return shell_task(
        script, **{"runtime": {"name": runtime, "options": options}, "evaluator": "session_completion", **fields}
    )


def permit_python(workshop: Workshop) -> None:
    workshop.permits = {"mounts": [str(PYTHON), str(PACKAGES)]}


def printed(workshop: Workshop, session_id: str) -> str:
    log = workshop.paths.session(session_id).logs / "harness.stdout"
    return log.read_text() if log.exists() else ""


def complaint(workshop: Workshop, session_id: str) -> str:
    log = workshop.paths.session(session_id).logs / "harness.stderr"
    return log.read_text()[-3000:] if log.exists() else ""
