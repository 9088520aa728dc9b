"""Sessions with a result in a list: the query, and how far back it looks.

Each filter has an index that is also in the order of the list, except rewards and parts of ids. A single filter
leads to its page at once. With several, or one without an index, the database follows one index and looks at each
session for the rest: at `LOOKED` of them at most, so that a page costs the same however many sessions have ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    ColumnExpressionArgument,
    Connection,
    Select,
    and_,
    func,
    or_,
    select,
    true,
)

from polar.server.overview.outcome_columns import storable
from polar.server.records.tables import HAS_FAILED, outcomes, sessions
from polar.types import SessionFilter

LOOKED = 20_000
OF_SESSION = (
    *("number", "session_id", "task_id", "index", "attempt", "stage", "since", "node_id", "harness", "runtime"),
    *("cancel_requested", "group_id"),
)
_OF_OUTCOME = (
    *("reward", "untrainable_reason", "failed_by", "failure_where", "failure_type", "calls", "traces"),
    *("sampled_tokens", "policy_updates", "health"),
)


class IndexedFilter(NamedTuple):
    by_index: ColumnExpressionArgument[bool]
    row_by_row: ColumnExpressionArgument[bool]
    """The same in a form that no index serves, for when the index of another filter is followed."""
    number: Column[int] = outcomes.c.number
    """Of the table that has the index."""


class ListQuery(NamedTuple):
    rows: Select[Any]
    end: int | None = None
    """It does not look at sessions up to this number. None: it looks at all."""


def ended(connection: Connection, wanted: SessionFilter, before: int | None) -> ListQuery:
    indexed, others = list(_indexed(wanted)), _without_index(wanted)
    if not others and len(indexed) <= 1:
        return ListQuery(_rows().where(*(each.by_index for each in indexed)))
    candidates = indexed or [IndexedFilter(true(), true())]
    ends = [_end_of(connection, each, before) for each in candidates]
    end = min(ends, key=lambda number: number or 0)
    followed = candidates[ends.index(end)]  # it leads furthest back
    rest = (each.row_by_row for each in candidates if each is not followed)
    rows = _rows().where(followed.by_index, *rest, *others)
    return ListQuery(rows) if end is None else ListQuery(rows.where(outcomes.c.number > end), end)


def names_contain(part: str) -> ColumnElement[bool]:
    """Of session, task or group."""
    part = storable(part).lower()
    named = (sessions.c.session_id, sessions.c.task_id, sessions.c.group_id)
    return or_(*(func.lower(column).contains(part, autoescape=True) for column in named))


def _rows() -> Select[Any]:
    of_session = [sessions.c[name] for name in OF_SESSION if name != "number"]
    columns = (outcomes.c.number, *of_session, *(outcomes.c[name] for name in _OF_OUTCOME))
    return select(*columns).select_from(outcomes).join(sessions, sessions.c.number == outcomes.c.number)


def _end_of(connection: Connection, followed: IndexedFilter, before: int | None) -> int | None:
    """The number of the first session beyond `LOOKED`. None: there are not so many."""
    numbers = select(followed.number).where(followed.by_index)
    if before is not None:
        numbers = numbers.where(followed.number < before)
    return connection.execute(numbers.order_by(followed.number.desc()).offset(LOOKED).limit(1)).scalar()


def _indexed(wanted: SessionFilter) -> Iterator[IndexedFilter]:
    if wanted.task_id is not None:
        by_task = sessions.c.task_id
        yield IndexedFilter(by_task == wanted.task_id, _unserved(by_task) == wanted.task_id, sessions.c.number)
    equal = {
        outcomes.c.group_id: wanted.group_id,
        outcomes.c.node_id: wanted.node_id,
        outcomes.c.harness: None if wanted.harness is None else storable(wanted.harness),
        outcomes.c.stage: None if wanted.stage is None else wanted.stage.value,
        outcomes.c.untrainable_reason: wanted.untrainable,
    }
    for column, value in equal.items():
        if value is not None:
            yield IndexedFilter(column == value, _unserved(column) == value)
    if wanted.failure_type is not None:
        yield _failed(outcomes.c.failure_type, storable(wanted.failure_type))
    if wanted.failed_by == "any":
        yield IndexedFilter(HAS_FAILED, _unserved(outcomes.c.failed_by) != "")
    elif wanted.failed_by is not None:
        yield _failed(outcomes.c.failed_by, wanted.failed_by)


def _failed(column: Column[Any], value: str) -> IndexedFilter:
    """Only sessions that failed are in its index."""
    failed = _unserved(outcomes.c.failed_by) != ""
    return IndexedFilter(and_(column == value, HAS_FAILED), and_(_unserved(column) == value, failed))


def _unserved(column: Column[Any]) -> ColumnElement[Any]:
    return func.coalesce(column, "")


def _without_index(wanted: SessionFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.reward_at_least is not None:
        conditions.append(outcomes.c.reward >= wanted.reward_at_least)
    if wanted.reward_at_most is not None:
        conditions.append(outcomes.c.reward <= wanted.reward_at_most)
    if wanted.text:
        conditions.append(names_contain(wanted.text))
    return conditions
