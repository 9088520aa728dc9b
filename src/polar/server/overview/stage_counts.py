"""How many sessions are in each stage: counted with each change, because counting all of them takes too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sqlalchemy import Connection, insert, select, update

from polar.server.records.tables import stage_counts
from polar.server.state import Change
from polar.types import Stage

Move = tuple[str | None, str]
"""A session's stage before, None if it is new, and after."""


def count_moves(change: Change, moves: Iterable[Move]) -> None:
    """In the transaction that makes the moves."""
    differences = Counter[str]()
    for before, after in moves:
        differences[after] += 1
        if before is not None:
            differences[before] -= 1
    for stage, difference in differences.items():
        if difference:
            _add(change, stage, difference)


def count_removed(change: Change, stages: Iterable[str]) -> None:
    """In the transaction that removes the sessions that were in them."""
    for stage, count in Counter(stages).items():
        _add(change, stage, -count)


def sessions_by_stage(connection: Connection) -> dict[str, int]:
    """Every stage, also those without sessions."""
    found = {stage: count for stage, count in connection.execute(select(stage_counts))}
    return {stage.value: found.get(stage.value, 0) for stage in Stage}


def _add(change: Change, stage: str, difference: int) -> None:
    grown = update(stage_counts).where(stage_counts.c.stage == stage)
    if not change.connection.execute(grown.values(sessions=stage_counts.c.sessions + difference)).rowcount:
        change.connection.execute(insert(stage_counts).values(stage=stage, sessions=difference))
