"""The policy: which version generates, and whether generation is paused; and how far a pause has come.

A paused policy does not stop leases: the calls of sessions wait in the gateways. Nodes tell with each heartbeat
which policy they follow and how much they generate, so a trainer can wait until nothing is generated any more.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, delete, insert, or_, select

from polar.server.records.events import News, append
from polar.server.records.tables import IS_HELD, nodes, policy, sessions
from polar.server.state import Change
from polar.types import Drain, Policy, PolicyChange


def current(connection: Connection) -> Policy:
    body = connection.execute(select(policy.c.body)).scalar_one_or_none()
    return Policy() if body is None else Policy.model_validate_json(body)


def put(change: Change, wanted: PolicyChange) -> Policy:
    """Putting what already stands is no event, and no update."""
    old = current(change.connection)
    new = _changed(old, wanted)
    if new == old:
        return old
    change.connection.execute(delete(policy))
    change.connection.execute(insert(policy).values(row=1, body=json.dumps(new.model_dump())))
    append(change, [News("policy", data=new.model_dump())])
    change.wakes.add("policy")
    return new


def drain(connection: Connection, alive_since: float) -> Drain:
    """Over the nodes that were heard of since then or hold sessions: a server that comes back has not heard of
    anybody yet."""
    stands = current(connection)
    holders = select(sessions.c.node_id).where(IS_HELD)
    live = or_(nodes.c.last_seen > alive_since, nodes.c.node_id.in_(holders))
    alive = connection.execute(select(nodes).where(live).order_by(nodes.c.node_id)).all()
    return Drain(
        policy=stands,
        generating=sum(row.generating for row in alive),
        unheard=tuple(row.node_id for row in alive if row.heard_revision != stands.revision),
    )


def _changed(old: Policy, wanted: PolicyChange) -> Policy:
    values: dict[str, Any] = wanted.model_dump(exclude_none=True)
    new = old.model_copy(update=values)
    if new == old:
        return old
    updates = old.updates + (new.version != old.version)
    return new.model_copy(update={"updates": updates, "revision": old.revision + 1})
