"""Sessions in a list: the newest submitted first, page by page, by whatever a person looks for.

Sessions with a result are found by their outcomes (`ended_sessions`), those without one among the open sessions; a
page has the newest of both.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, RowMapping, Select, and_, or_, select

from polar.server.overview import ended_sessions
from polar.server.overview.ended_sessions import OF_SESSION, ListQuery, ended, names_contain
from polar.server.overview.outcome_columns import storable
from polar.server.records.tables import IS_HELD, IS_OPEN, sessions
from polar.types import SessionFilter, SessionListPage, SessionRowView

_OUTCOMES_ONLY = ("failed_by", "failure_type", "untrainable", "reward_at_least", "reward_at_most")


def page(connection: Connection, wanted: SessionFilter, before: int | None, limit: int) -> SessionListPage:
    """It ends early where it has looked at many sessions for what has no index."""
    found: list[SessionRowView] = []
    end = 0
    for query in queries_of(connection, wanted, before):
        found += map(_view, connection.execute(one_page(query.rows, before, limit + 1)).mappings())
        end = max(end, query.end or 0)
    newest = sorted((row for row in found if row.number > end), key=lambda row: row.number, reverse=True)
    if len(newest) > limit:
        return SessionListPage(sessions=tuple(newest[:limit]), before=newest[limit - 1].number)
    if end:
        return SessionListPage(sessions=tuple(newest), before=end + 1, looked=ended_sessions.LOOKED)
    return SessionListPage(sessions=tuple(newest))


def queries_of(connection: Connection, wanted: SessionFilter, before: int | None) -> list[ListQuery]:
    """One for sessions without a result, one for those with one, as far as they can be wanted."""
    final = None if wanted.stage is None else wanted.stage.final
    queries: list[ListQuery] = []
    if wanted.open is not False and not final and all(getattr(wanted, name) is None for name in _OUTCOMES_ONLY):
        queries.append(ListQuery(_open(wanted)))
    if wanted.open is not True and final is not False:
        queries.append(ended(connection, wanted, before))
    return queries


def one_page(query: Select[Any], before: int | None, limit: int) -> Select[Any]:
    number = query.selected_columns["number"]
    if before is not None:
        query = query.where(number < before)
    return query.order_by(number.desc()).limit(limit)


def _open(wanted: SessionFilter) -> Select[Any]:
    query = select(*(sessions.c[name] for name in OF_SESSION)).where(IS_OPEN)
    if wanted.stage is not None:
        query = query.where(sessions.c.stage == wanted.stage.value)
    if wanted.harness is not None:
        query = query.where(sessions.c.harness == storable(wanted.harness))
    if wanted.node_id is not None:
        query = query.where(IS_HELD, sessions.c.node_id == wanted.node_id)
    if wanted.group_id is not None:  # a task that names no group is a group of its own
        alone = and_(sessions.c.group_id.is_(None), sessions.c.task_id == wanted.group_id)
        query = query.where(or_(sessions.c.group_id == wanted.group_id, alone))
    if wanted.task_id is not None:
        query = query.where(sessions.c.task_id == wanted.task_id)
    return query.where(names_contain(wanted.text)) if wanted.text else query


def _view(row: RowMapping) -> SessionRowView:
    values = {str(name): value for name, value in row.items()}
    values["group_id"] = row["group_id"] or row["task_id"]
    if "failed_by" in values:
        values["failed_by_agent"] = values.pop("failed_by") == "agent"
        values["trainable"] = not row["untrainable_reason"]
    return SessionRowView.model_validate(values)
