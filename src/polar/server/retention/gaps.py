"""What a client learns if retention has removed something that it asks for: an error that names it, never
silence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from sqlalchemy import Connection, delete, insert, select

from polar.server.errors import Gone, NotFound, not_found
from polar.server.records.tables import among, removed, storage
from polar.server.state import Change

REMEMBERED_S = 30 * 86400.0
"""How long the server knows the names of what it removed."""
Kind = Literal["task", "group"]


def check_cursor(connection: Connection, after: int, *, allow_gap: bool) -> None:
    """For a client that reads all results. A new one, without a cursor, gets what there is."""
    last = connection.execute(select(storage.c.results_removed)).scalar_one()
    if 0 < after < last and not allow_gap:
        raise Gone(
            f"retention has removed results after cursor {after}, up to cursor {last}; ask with allow_gap=true "
            "for those that are left, and raise server.retention.results_days if this client needs more time"
        )


def check_names(
    connection: Connection, kind: Kind, missing: Sequence[str], after: int, *, allow_gap: bool
) -> None:
    """`missing`: tasks or groups that the server does not have. Those of which the client has read everything are
    done. Raises `NotFound` or `Gone` for the others."""
    known = (removed.c.kind == kind) & among(connection, removed.c.name, missing)
    last_of = {
        name: cursor for name, cursor in connection.execute(select(removed.c.name, removed.c.cursor).where(known))
    }
    for name in missing:
        if name not in last_of:
            raise not_found(kind, name)
        if last_of[name] > after and not allow_gap:
            raise was_removed(kind, name)


def is_removed(connection: Connection, kind: Kind, name: str) -> bool:
    row = select(removed.c.cursor).where(removed.c.kind == kind, removed.c.name == name)
    return connection.execute(row).first() is not None


def unknown(connection: Connection, kind: Kind, name: str) -> NotFound | Gone:
    """The error for a task or group that the server does not have."""
    return was_removed(kind, name) if is_removed(connection, kind, name) else not_found(kind, name)


def unknown_session(connection: Connection, session_id: str) -> NotFound | Gone:
    """Its task is known for a while after it was removed."""
    task_id = session_id.rpartition("-")[0]
    return (
        was_removed("task", task_id)
        if is_removed(connection, "task", task_id)
        else not_found("session", session_id)
    )


def was_removed(kind: Kind, name: str) -> Gone:
    return Gone(
        f"the server's retention has removed {kind} {name!r} with its results (server.retention.results_days)"
    )


def remember(change: Change, names: Collection[tuple[Kind, str, int]]) -> None:
    """Kind, name, and the cursor of the last result."""
    for kind, name, _ in names:
        forget(change, kind, name)
    rows = [{"kind": kind, "name": name, "cursor": cursor, "at": change.now} for kind, name, cursor in names]
    change.connection.execute(insert(removed), rows)
    change.connection.execute(delete(removed).where(removed.c.at < change.now - REMEMBERED_S))


def forget(change: Change, kind: Kind, name: str) -> None:
    """The name is used again."""
    change.connection.execute(delete(removed).where(removed.c.kind == kind, removed.c.name == name))
