"""Ending a reply at a stop id, for servers that do not, or not at every one."""

from __future__ import annotations

from collections.abc import Sequence


def cut_at_stop(ids: Sequence[int], stop_ids: tuple[int, ...]) -> list[int]:
    """The ids up to and with the first stop id. What is sampled after it cannot have changed what came before, so
    cutting there is exact."""
    for position, token_id in enumerate(ids):
        if token_id in stop_ids:
            return list(ids[: position + 1])
    return list(ids)
