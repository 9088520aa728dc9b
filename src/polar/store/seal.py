"""A digest over a session's result and its task, which reveals later changes of either; the same for later scores.

Default values are left out, so that a later Polar, whose types have more fields, makes the same seal.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from polar.types import LaterScore, SessionResult, Strict, TaskRequest
from polar.types.result import DERIVED


def sealed(result: SessionResult, task: TaskRequest) -> SessionResult:
    return result.model_copy(update={"seal": seal_of(result, task)})


def seal_of(result: SessionResult, task: TaskRequest) -> str:
    return _digest([_plain(result, DERIVED | {"seal"}), _plain(task, frozenset())])


def sealed_later(later: LaterScore) -> LaterScore:
    return later.model_copy(update={"seal": later_seal_of(later)})


def later_seal_of(later: LaterScore) -> str:
    """Also over the seal of the session's result, to which it belongs."""
    return _digest(_plain(later, frozenset({"seal"})))


def _digest(plain: Any) -> str:
    return hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=16).hexdigest()


def _plain(value: Strict, without: frozenset[str]) -> dict[str, Any]:
    return value.model_dump(mode="json", exclude=set(without), exclude_defaults=True)
