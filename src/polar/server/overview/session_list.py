"""Sessions in a list: the newest submitted first, page by page, by whatever a person looks for.

Sessions with a result are found by their outcomes, those without one among the open sessions; a page has the
newest of both. Each filter has an index that is also in the order of the list. Only rewards and parts of ids have
none: for these the database looks through the newest sessions until the page is full.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, RowMapping, Select, and_, func, or_, select

from polar.server.overview.outcome_columns import storable
from polar.server.records.tables import HAS_FAILED, IS_HELD, IS_OPEN, outcomes, sessions
from polar.types import SessionFilter, SessionListPage, SessionRowView

_OF_SESSION = (
    *("number", "session_id", "task_id", "index", "attempt", "stage", "since", "node_id", "harness", "runtime"),
    "cancel_requested",
)
_OF_OUTCOME = (
    *("reward", "untrainable_reason", "failure_where", "failure_type", "calls", "traces", "sampled_tokens"),
    *("policy_updates", "health"),
)
_OUTCOMES_ONLY = ("failed_by", "failure_type", "untrainable", "reward_at_least", "reward_at_most")


def page(connection: Connection, wanted: SessionFilter, before: int | None, limit: int) -> SessionListPage:
    found: list[SessionRowView] = []
    for query in queries_of(wanted):
        found += map(_view, connection.execute(one_page(query, before, limit + 1)).mappings())
    newest = sorted(found, key=lambda row: row.number, reverse=True)
    more = len(newest) > limit
    return SessionListPage(sessions=tuple(newest[:limit]), before=newest[limit - 1].number if more else None)


def queries_of(wanted: SessionFilter) -> list[Select[Any]]:
    """One for sessions without a result, one for those with one, as far as they can be wanted."""
    final = None if wanted.stage is None else wanted.stage.final
    queries: list[Select[Any]] = []
    if wanted.open is not False and not final and all(getattr(wanted, name) is None for name in _OUTCOMES_ONLY):
        queries.append(_open(wanted))
    if wanted.open is not True and final is not False:
        queries.append(_ended(wanted))
    return queries


def one_page(query: Select[Any], before: int | None, limit: int) -> Select[Any]:
    number = query.selected_columns["number"]
    if before is not None:
        query = query.where(number < before)
    return query.order_by(number.desc()).limit(limit)


def _open(wanted: SessionFilter) -> Select[Any]:
    query = select(*(sessions.c[name] for name in _OF_SESSION), sessions.c.group_id).where(IS_OPEN)
    if wanted.stage is not None:
        query = query.where(sessions.c.stage == wanted.stage.value)
    if wanted.harness is not None:
        query = query.where(sessions.c.harness == storable(wanted.harness))
    if wanted.node_id is not None:
        query = query.where(IS_HELD, sessions.c.node_id == wanted.node_id)
    if wanted.group_id is not None:  # a task that names no group is a group of its own
        alone = and_(sessions.c.group_id.is_(None), sessions.c.task_id == wanted.group_id)
        query = query.where(or_(sessions.c.group_id == wanted.group_id, alone))
    return _by_task(query, wanted)


def _ended(wanted: SessionFilter) -> Select[Any]:
    of_session = [sessions.c[name] for name in (*_OF_SESSION, "group_id") if name != "number"]
    query = (
        select(outcomes.c.number, *of_session, outcomes.c.failed_by, *(outcomes.c[name] for name in _OF_OUTCOME))
        .select_from(outcomes)
        .join(sessions, sessions.c.number == outcomes.c.number)
    )
    equal = {
        outcomes.c.stage: None if wanted.stage is None else wanted.stage.value,
        outcomes.c.harness: None if wanted.harness is None else storable(wanted.harness),
        outcomes.c.node_id: wanted.node_id,
        outcomes.c.group_id: wanted.group_id,
        outcomes.c.failed_by: None if wanted.failed_by == "any" else wanted.failed_by,
        outcomes.c.failure_type: None if wanted.failure_type is None else storable(wanted.failure_type),
        outcomes.c.untrainable_reason: wanted.untrainable,
    }
    query = query.where(*(column == value for column, value in equal.items() if value is not None))
    if wanted.failed_by is not None or wanted.failure_type is not None:
        query = query.where(HAS_FAILED)
    if wanted.reward_at_least is not None:
        query = query.where(outcomes.c.reward >= wanted.reward_at_least)
    if wanted.reward_at_most is not None:
        query = query.where(outcomes.c.reward <= wanted.reward_at_most)
    return _by_task(query, wanted)


def _by_task(query: Select[Any], wanted: SessionFilter) -> Select[Any]:
    if wanted.task_id is not None:
        query = query.where(sessions.c.task_id == wanted.task_id)
    if wanted.text:
        part = storable(wanted.text).lower()
        named = (sessions.c.session_id, sessions.c.task_id, sessions.c.group_id)
        query = query.where(or_(*(func.lower(column).contains(part, autoescape=True) for column in named)))
    return query


def _view(row: RowMapping) -> SessionRowView:
    values = {str(name): value for name, value in row.items()}
    values["group_id"] = row["group_id"] or row["task_id"]
    if "failed_by" in values:
        values["failed_by_agent"] = values.pop("failed_by") == "agent"
        values["trainable"] = not row["untrainable_reason"]
    return SessionRowView.model_validate(values)
