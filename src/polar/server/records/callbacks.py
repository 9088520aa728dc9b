"""Callbacks: one row for each result whose task has a `callback_url`, with its tries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select, update

from polar.back_off import BackOff
from polar.server.records.tables import callbacks, results, tasks
from polar.server.retention.fetched import mark_sessions
from polar.server.state import Change
from polar.server.task_checks import target_of
from polar.types import SessionResult

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 3600.0
GIVE_UP_AFTER_S = 24 * 3600.0
MAX_PROBLEM = 500


@dataclass(frozen=True)
class Callback:
    session_id: str
    task_id: str
    attempt: int
    url: str
    target: str
    body: str
    """The `SessionResult` as JSON."""

    @property
    def key(self) -> str:
        """The same for every try, so that the receiver recognises a repetition."""
        return f"{self.session_id}:{self.attempt}"


def add(change: Change, ended: Sequence[SessionResult]) -> None:
    """In the transaction that records the results."""
    ids = {result.task_id for result in ended}
    wanted = select(tasks.c.task_id, tasks.c.callback_url).where(
        tasks.c.task_id.in_(ids), tasks.c.callback_url.is_not(None)
    )
    urls = {task_id: url for task_id, url in change.connection.execute(wanted)}
    rows = [
        {
            "session_id": result.session_id,
            "attempt": result.attempt,
            "url": urls[result.task_id],
            "target": target_of(urls[result.task_id]) or "",
            "created": change.now,
            "due": change.now,
        }
        for result in ended
        if result.task_id in urls
    ]
    if rows:
        change.connection.execute(insert(callbacks), rows)
        change.wakes.add("callbacks")


def next_due(
    connection: Connection, now: float, under_way: Collection[str], full: Collection[str]
) -> Callback | None:
    """The one due longest that is not under way, and whose target is not `full`."""
    query = (
        select(callbacks, results.c.task_id, results.c.body)
        .join(results, results.c.session_id == callbacks.c.session_id)
        .where(callbacks.c.due <= now)
        .where(callbacks.c.session_id.not_in(under_way), callbacks.c.target.not_in(full))
        .order_by(callbacks.c.due)
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    return Callback(row.session_id, row.task_id, row.attempt, row.url, row.target, row.body)


def next_due_at(connection: Connection, now: float) -> float | None:
    """When the next callback that is not due yet becomes due."""
    return connection.execute(select(func.min(callbacks.c.due)).where(callbacks.c.due > now)).scalar_one_or_none()


def delivered(change: Change, callback: Callback) -> None:
    this = callbacks.c.session_id == callback.session_id
    change.connection.execute(
        update(callbacks).where(this).values(tries=callbacks.c.tries + 1, due=None, delivered=change.now)
    )
    change.counts.append(lambda counts: counts.callback("delivered"))
    mark_sessions(change, [callback.session_id])


def failed(change: Change, callback: Callback, problem: str) -> bool:
    """Plans the next try. True: there is none, the callback is given up."""
    this = callbacks.c.session_id == callback.session_id
    row = change.connection.execute(select(callbacks.c.tries, callbacks.c.created).where(this)).one()
    given_up = change.now - row.created >= GIVE_UP_AFTER_S
    pause_s = BackOff(FIRST_PAUSE_S, LONGEST_PAUSE_S, failures=row.tries).next_s()
    due = None if given_up else change.now + pause_s
    change.connection.execute(
        update(callbacks).where(this).values(tries=row.tries + 1, due=due, problem=_kept(problem))
    )
    change.counts.append(lambda counts: counts.callback("given_up" if given_up else "failed"))
    return given_up


def give_up(change: Change, callback: Callback, problem: str) -> None:
    """There is no next try."""
    this = callbacks.c.session_id == callback.session_id
    change.connection.execute(
        update(callbacks).where(this).values(tries=callbacks.c.tries + 1, due=None, problem=_kept(problem))
    )
    change.counts.append(lambda counts: counts.callback("given_up"))


def _kept(problem: str) -> str:
    return problem.encode("ascii", "backslashreplace").decode().replace("\0", "\\0")[:MAX_PROBLEM]
