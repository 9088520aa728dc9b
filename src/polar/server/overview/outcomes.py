"""Outcomes: one small row beside each result, written with it, and what the newest of them amount to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, select

from polar.server.overview.outcome_columns import outcome_columns
from polar.server.records.sessions import SessionRow
from polar.server.records.tables import among, outcomes, results
from polar.server.state import Change
from polar.types import FailureCount, HarnessOutcomes, SessionResult

WINDOW = 1000
"""How many of the newest results the overview counts."""
RATE_S = 300.0
"""Over how long results per minute are counted, if there are fewer than `WINDOW`."""
SHORTEST_RATE_S = 60.0


class CountedOutcome(NamedTuple):
    """The columns that are counted."""

    session_id: str
    harness: str
    reward: float | None
    untrainable_reason: str
    failed_by: str
    failure_where: str
    failure_type: str
    calls: int
    traces: int
    sampled_tokens: int
    append_only_pairs: int
    merged_pairs: int
    policy_updates: int
    stale: bool
    run_s: float | None
    at: float | None


def record(
    change: Change, endings: Sequence[tuple[SessionRow, SessionResult]], node_id: str | None = None
) -> None:
    """In the transaction that inserts the results, after them."""
    ids = [row.session_id for row, _ in endings]
    query = select(results.c.session_id, results.c.cursor).where(
        among(change.connection, results.c.session_id, ids)
    )
    cursors = {session_id: cursor for session_id, cursor in change.connection.execute(query)}
    change.connection.execute(
        insert(outcomes),
        [
            {
                **outcome_columns(result),
                "number": row.number,
                "cursor": cursors[row.session_id],
                "group_id": row.group,
                "harness": row.harness,
                "node_id": node_id,
                "at": change.now,
            }
            for row, result in endings
        ],
    )


def newest(connection: Connection) -> list[CountedOutcome]:
    """The newest result first."""
    columns = [outcomes.c[name] for name in CountedOutcome._fields]
    rows = connection.execute(select(*columns).order_by(outcomes.c.cursor.desc()).limit(WINDOW))
    return list(map(CountedOutcome._make, rows))


def ended_per_minute(rows: Sequence[CountedOutcome], now: float) -> float | None:
    """None: none has ended since the server notes when."""
    times = [row.at for row in rows if row.at is not None]
    if not times:
        return None
    span_s = min(now - min(times), RATE_S)
    if len(times) < WINDOW:  # else more may have ended before the oldest of them
        span_s = max(span_s, SHORTEST_RATE_S)
    recent = sum(at >= now - span_s for at in times)
    return 60 * recent / max(span_s, 1.0)


def by_harness(rows: Iterable[CountedOutcome]) -> tuple[HarnessOutcomes, ...]:
    """Those with the most sessions first."""
    of_harness: dict[str, list[CountedOutcome]] = {}
    for row in rows:
        of_harness.setdefault(row.harness, []).append(row)
    found = [_of_one_harness(harness, own) for harness, own in of_harness.items()]
    return tuple(sorted(found, key=lambda each: (-each.sessions, each.harness)))


def _of_one_harness(harness: str, rows: Sequence[CountedOutcome]) -> HarnessOutcomes:
    def total(column: str) -> int:
        return sum(getattr(row, column) for row in rows)

    pairs = total("append_only_pairs")
    return HarnessOutcomes(
        harness=harness,
        sessions=len(rows),
        trainable=sum(not row.untrainable_reason for row in rows),
        mean_reward=mean(row.reward for row in rows),
        calls_per_session=total("calls") / len(rows),
        rows_per_session=total("traces") / len(rows),
        merge_rate=total("merged_pairs") / pairs if pairs else None,
        sampled_tokens=total("sampled_tokens"),
        run_s=mean(row.run_s for row in rows),
    )


def failures(rows: Iterable[CountedOutcome]) -> tuple[FailureCount, ...]:
    """The most frequent first; each with its newest session."""
    counts = Counter[tuple[str, str, bool]]()
    newest_of: dict[tuple[str, str, bool], str] = {}
    for row in rows:
        if row.failed_by:
            kind = (row.failure_where, row.failure_type, row.failed_by == "agent")
            counts[kind] += 1
            newest_of.setdefault(kind, row.session_id)
    return tuple(
        FailureCount(where=kind[0], type=kind[1], agent=kind[2], count=count, session_id=newest_of[kind])
        for kind, count in counts.most_common()
    )


def count_by(rows: Iterable[CountedOutcome], key: Callable[[CountedOutcome], Any]) -> dict[Any, int]:
    """In the order of the keys."""
    return dict(sorted(Counter(map(key, rows)).items()))


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
