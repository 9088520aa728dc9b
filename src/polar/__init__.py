"""Polar: reinforcement learning over unmodified agent harnesses.

    import polar

    run = polar.run("tasks.toml")          # in this process; polar.SyncPolarClient for a rollout server
    rows = list(run.rows())                # token ids, mask, logprobs, reward, group: docs/python.md

What is named here is what programs should import, with `polar.types` for the other types and `polar.testing` for
tests. Names are loaded when they are used, so `import polar` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polar.client import PolarClient, SyncPolarClient
    from polar.credit.group import Group
    from polar.runs.running import run, run_async
    from polar.runs.stored import StoredRun, StoredSession, load_run
    from polar.types import SessionResult, TaskRequest, Trace

__version__ = "0.1.0"

__all__ = [
    "Group",
    "PolarClient",
    "SessionResult",
    "StoredRun",
    "StoredSession",
    "SyncPolarClient",
    "TaskRequest",
    "Trace",
    "__version__",
    "load_run",
    "run",
    "run_async",
]

_MODULE_OF = {
    "Group": "polar.credit.group",
    "PolarClient": "polar.client",
    "SessionResult": "polar.types",
    "StoredRun": "polar.runs.stored",
    "StoredSession": "polar.runs.stored",
    "SyncPolarClient": "polar.client",
    "TaskRequest": "polar.types",
    "Trace": "polar.types",
    "load_run": "polar.runs.stored",
    "run": "polar.runs.running",
    "run_async": "polar.runs.running",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'polar' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
