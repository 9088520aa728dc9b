"""A digest over a session's result and its task, which reveals later changes of either.

Default values are left out, so that a later Polar, whose types have more fields, makes the same seal.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from polar.types import SessionResult, Strict, TaskRequest
from polar.types.result import DERIVED


def sealed(result: SessionResult, task: TaskRequest) -> SessionResult:
    return result.model_copy(update={"seal": seal_of(result, task)})


def seal_of(result: SessionResult, task: TaskRequest) -> str:
    whole = [_plain(result, DERIVED | {"seal"}), _plain(task, frozenset())]
    return hashlib.blake2b(json.dumps(whole, sort_keys=True).encode(), digest_size=16).hexdigest()


def _plain(value: Strict, without: frozenset[str]) -> dict[str, Any]:
    return value.model_dump(mode="json", exclude=set(without), exclude_defaults=True)
