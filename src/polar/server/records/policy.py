"""The policy: its version, whether generation is paused, and how far a pause has come.

A pause does not stop leases: the calls of sessions wait in the gateways. Nodes report with each heartbeat which
policy revision they follow and how many generations are under way, so a trainer can wait until all have ended.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, delete, insert, or_, select

from polar.server.records.events import NewEvent, append
from polar.server.records.tables import IS_HELD, nodes, policy, sessions
from polar.server.state import Change
from polar.types import Drain, Policy, PolicyChange


def current(connection: Connection) -> Policy:
    body = connection.execute(select(policy.c.body)).scalar_one_or_none()
    return Policy() if body is None else Policy.model_validate_json(body)


def put(change: Change, wanted: PolicyChange) -> Policy:
    """Without an event or a new revision if nothing changes."""
    old = current(change.connection)
    new = _changed(old, wanted)
    change.detail |= wanted.model_dump(exclude_none=True)
    if new == old:
        return old
    change.connection.execute(delete(policy))
    change.connection.execute(insert(policy).values(row=1, body=json.dumps(new.model_dump())))
    append(change, [NewEvent("policy", data=new.model_dump())])
    change.wakes.add("policy")
    return new


def drain(connection: Connection, alive_since: float) -> Drain:
    """Over the nodes seen since `alive_since` or holding sessions: after a restart none has been seen yet."""
    now = current(connection)
    holders = select(sessions.c.node_id).where(IS_HELD)
    live = or_(nodes.c.last_seen > alive_since, nodes.c.node_id.in_(holders))
    alive = connection.execute(select(nodes).where(live).order_by(nodes.c.node_id)).all()
    return Drain(
        policy=now,
        generating=sum(row.generating for row in alive),
        unheard=tuple(row.node_id for row in alive if row.heard_revision != now.revision),
    )


def _changed(old: Policy, wanted: PolicyChange) -> Policy:
    values: dict[str, Any] = wanted.model_dump(exclude_none=True)
    new = old.model_copy(update=values)
    if new == old:
        return old
    updates = old.updates + (new.version != old.version)
    return new.model_copy(update={"updates": updates, "revision": old.revision + 1})
