"""Nodes: registration, keys, and what each reported in its last heartbeat."""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, insert, or_, select, update

from polar.server.errors import Invalid, Unauthorized, not_found
from polar.server.records import policy
from polar.server.records.events import NewEvent, append
from polar.server.records.tables import IS_HELD, nodes, sessions
from polar.server.scheduling.stored_needs import read_abilities
from polar.server.scheduling.versions import of_our_protocol
from polar.server.state import Change
from polar.types import (
    Heartbeat,
    NodeAbilities,
    NodeCredentials,
    NodeDrain,
    NodeStatus,
    Registration,
    Sickness,
)

FORGOTTEN_AFTER_S = 24 * 3600.0
MAX_SLOTS = 2**31 - 1
OLD_KEY_S = 600.0
"""How long a node's key stays valid after the next was given."""


def sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def register(change: Change, registration: Registration) -> NodeCredentials:
    if not registration.name.isprintable():
        raise Invalid("name: must be printable")
    if registration.slots > MAX_SLOTS:
        raise Invalid(f"slots: at most {MAX_SLOTS}")
    abilities = of_our_protocol(registration.abilities)
    node_id, key = f"node-{secrets.token_hex(6)}", secrets.token_urlsafe(32)
    row = {"node_id": node_id, "key_sha256": sha256(key), "registered": change.now, "last_seen": change.now}
    given = {"name": registration.name, "slots": registration.slots}
    change.connection.execute(insert(nodes).values(**row, **given, abilities=_stored(abilities)))
    append(change, [_node_event(node_id, "registered", **given)])
    change.detail |= {"node_id": node_id, "name": registration.name}
    return NodeCredentials(node_id=node_id, key=key, heartbeat_s=change.config.heartbeat_s)


def keys_of(connection: Connection, node_id: str, now: float) -> tuple[str, ...]:
    """The hashes of the node's keys: the last, and for a while the one before."""
    columns = (nodes.c.key_sha256, nodes.c.old_key_sha256, nodes.c.old_key_expires)
    row = connection.execute(select(*columns).where(nodes.c.node_id == node_id)).one_or_none()
    if row is None:
        return ()
    old = row.old_key_sha256 if row.old_key_expires is not None and now < row.old_key_expires else None
    return (row.key_sha256,) if old is None else (row.key_sha256, old)


def renew_key(change: Change, node_id: str, used_sha256: str) -> NodeCredentials:
    """The key that the request used stays valid for a while: the answer may be lost, and other requests of the
    node may be under way."""
    key = secrets.token_urlsafe(32)
    values = {"key_sha256": sha256(key), "old_key_sha256": used_sha256, "old_key_expires": change.now + OLD_KEY_S}
    change.connection.execute(update(nodes).where(nodes.c.node_id == node_id).values(**values))
    touch(change, node_id)
    return NodeCredentials(node_id=node_id, key=key, heartbeat_s=change.config.heartbeat_s)


def touch(change: Change, node_id: str) -> None:
    """Notes that the node is alive. It may have left since its key was checked."""
    seen = change.connection.execute(update(nodes).where(nodes.c.node_id == node_id).values(last_seen=change.now))
    if seen.rowcount != 1:
        raise Unauthorized("unknown node; register again")


def heard_now(change: Change) -> None:
    """All nodes count as alive from now on."""
    change.connection.execute(update(nodes).values(last_seen=change.now))


def note_heartbeat(change: Change, node_id: str, beat: Heartbeat) -> None:
    """Stores how much the node generates, under which policy, and whether it is sick."""
    _note_health(change, node_id, beat.sick)
    if beat.abilities is not None:
        _note_abilities(change, node_id, beat.abilities)
    differs = or_(nodes.c.generating != beat.generating, nodes.c.heard_revision.is_distinct_from(beat.revision))
    if _update(change, node_id, differs, generating=beat.generating, heard_revision=beat.revision):
        change.wakes.add("policy")


def _note_health(change: Change, node_id: str, sick: Sickness | None) -> None:
    """Appends an event when the node falls sick, has another sickness, or is well again."""
    stored = None if sick is None else sick.model_dump_json()
    if _update(change, node_id, nodes.c.sick.is_distinct_from(stored), sick=stored):
        data = {} if sick is None else {"part": sick.part, "why": sick.why}
        append(change, [_node_event(node_id, "well" if sick is None else "sick", **data)])


def _note_abilities(change: Change, node_id: str, abilities: NodeAbilities) -> None:
    """Wakes the node's own request for sessions: it may run others now."""
    stored = _stored(abilities)
    if _update(change, node_id, nodes.c.abilities.is_distinct_from(stored), abilities=stored):
        append(change, [_node_event(node_id, "other abilities")])
        change.wakes.add("queue")


def _stored(abilities: NodeAbilities) -> str:
    return json.dumps(abilities.model_dump(mode="json"))


def abilities_of(connection: Connection, node_id: str) -> NodeAbilities | None:
    """None: the node registered at an older Polar."""
    query = select(nodes.c.abilities).where(nodes.c.node_id == node_id)
    stored = connection.execute(query).scalar_one_or_none()
    return None if stored is None else read_abilities(stored)


def _update(change: Change, node_id: str, condition: ColumnElement[bool], **values: Any) -> bool:
    """True if the row was changed."""
    wanted = update(nodes).where(nodes.c.node_id == node_id, condition).values(**values)
    return bool(change.connection.execute(wanted).rowcount)


def set_draining(change: Change, node_id: str, wanted: NodeDrain) -> None:
    """A draining node gets no more sessions; those that it has end as usual."""
    since = change.now if wanted.draining else None
    change.detail["draining"] = wanted.draining
    if not keys_of(change.connection, node_id, change.now):
        raise not_found("node", node_id)
    column = nodes.c.draining_since
    differs = column.is_(None) if wanted.draining else column.is_not(None)
    if _update(change, node_id, differs, draining_since=since):
        append(change, [_node_event(node_id, "draining" if wanted.draining else "not draining")])
        change.wakes.add("queue")


def is_draining(connection: Connection, node_id: str) -> bool:
    query = select(nodes.c.draining_since).where(nodes.c.node_id == node_id)
    return connection.execute(query).scalar_one_or_none() is not None


def name_of(connection: Connection, node_id: str | None) -> str:
    """For display; the id if the node is no longer known."""
    found = connection.execute(select(nodes.c.name).where(nodes.c.node_id == node_id)).scalar_one_or_none()
    return found or node_id or ""


def remove(change: Change, node_id: str) -> None:
    """The caller puts its sessions back in the queue."""
    change.connection.execute(delete(nodes).where(nodes.c.node_id == node_id))
    append(change, [_node_event(node_id, "left")])
    change.wakes.add("policy")


def forget(change: Change) -> None:
    """Deletes nodes that have been silent for `FORGOTTEN_AFTER_S`."""
    silent = nodes.c.last_seen < change.now - FORGOTTEN_AFTER_S
    gone = list(change.connection.execute(select(nodes.c.node_id).where(silent)).scalars())
    if gone:
        change.connection.execute(delete(nodes).where(nodes.c.node_id.in_(gone)))
        append(change, [_node_event(node_id, "forgotten") for node_id in gone])


def listing(connection: Connection, alive_since: float) -> list[NodeStatus]:
    revision = policy.current(connection).revision
    held: dict[str, list[str]] = {}
    # Sorted here: to have them in order, SQLite would look through all sessions.
    query = select(sessions.c.number, sessions.c.node_id, sessions.c.session_id).where(IS_HELD)
    for _, node_id, session_id in sorted(connection.execute(query), key=lambda row: row[0]):
        held.setdefault(node_id, []).append(session_id)
    rows = connection.execute(select(nodes).order_by(nodes.c.registered, nodes.c.node_id))
    return [
        NodeStatus(
            node_id=row.node_id,
            name=row.name,
            slots=row.slots,
            registered=row.registered,
            last_seen=row.last_seen,
            alive=row.last_seen > alive_since,
            sessions=tuple(held.get(row.node_id, ())),
            generating=row.generating,
            heard=row.heard_revision == revision,
            sick=None if row.sick is None else Sickness.model_validate_json(row.sick),
            draining=row.draining_since is not None,
            abilities=None if row.abilities is None else read_abilities(row.abilities),
        )
        for row in rows
    ]


def _node_event(node_id: str, what: str, **more: Any) -> NewEvent:
    return NewEvent("node", node_id=node_id, data={"change": what, **more})
