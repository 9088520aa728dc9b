"""Writing of server-sent events, as each provider frames them."""

from __future__ import annotations

from typing import Any

import orjson


def data_event(payload: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def named_event(payload: dict[str, Any]) -> bytes:
    """An event whose name is its `type`."""
    return b"event: " + str(payload["type"]).encode() + b"\n" + data_event(payload)
