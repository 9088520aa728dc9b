"""Groups in a list, and whether the rewards of the newest finished ones differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from polar.credit.advantages import has_contrast
from polar.server.overview.outcomes import mean
from polar.server.records.tables import among, groups, outcomes
from polar.types import GroupContrast, GroupListPage, GroupView

NEWEST_GROUPS = 100
"""How many finished groups the contrast counts."""
MAX_SESSIONS = 2000
"""Of the groups that are read at once: a group may have thousands."""


def page(connection: Connection, before: int | None, limit: int) -> GroupListPage:
    """A page ends early if its groups have many sessions."""
    query = select(groups).order_by(groups.c.number.desc()).limit(limit + 1)
    if before is not None:
        query = query.where(groups.c.number < before)
    found = connection.execute(query).all()
    rows = _of_bounded_size(found[:limit])
    rewards = _rewards_of(connection, rows)
    return GroupListPage(
        groups=tuple(_view(row, rewards[row.group_id]) for row in rows),
        before=rows[-1].number if len(rows) < len(found) else None,
    )


def contrast(connection: Connection) -> GroupContrast:
    query = select(groups).where(groups.c.cursor.is_not(None)).order_by(groups.c.cursor.desc())
    rows = _of_bounded_size(connection.execute(query.limit(NEWEST_GROUPS)).all())
    rewards = _rewards_of(connection, rows)
    views = [_view(row, rewards[row.group_id]) for row in rows]
    return GroupContrast(
        groups=len(views),
        without_contrast=sum(not view.contrast for view in views),
        mean_spread=mean(view.spread for view in views),
    )


def _of_bounded_size(rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    """The first of them, at least one."""
    total = 0
    for count, row in enumerate(rows):
        total += row.sessions
        if count and total > MAX_SESSIONS:
            return rows[:count]
    return rows


def _rewards_of(connection: Connection, rows: Sequence[Row[Any]]) -> dict[str, list[float | None]]:
    rewards: dict[str, list[float | None]] = {row.group_id: [] for row in rows}
    query = select(outcomes.c.group_id, outcomes.c.reward).order_by(outcomes.c.cursor)
    for group_id, reward in connection.execute(query.where(among(connection, outcomes.c.group_id, list(rewards)))):
        rewards[group_id].append(reward)
    return rewards


def _view(row: Row[Any], rewards: Sequence[float | None]) -> GroupView:
    known = [reward for reward in rewards if reward is not None]
    centre = mean(known)
    return GroupView(
        group_id=row.group_id,
        sessions=row.sessions,
        unfinished=row.unfinished,
        rewards=tuple(rewards),
        mean=centre,
        spread=None if centre is None else math.sqrt(sum((one - centre) ** 2 for one in known) / len(known)),
        contrast=has_contrast([[reward] for reward in known]),
    )
