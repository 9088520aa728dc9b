"""The policy: which version generates, and whether generation is paused. A paused policy does not stop leases:
the calls of sessions wait in the gateways."""

from __future__ import annotations

import json

from sqlalchemy import Connection, delete, insert, select

from polar.server.events import News, append
from polar.server.state import Change
from polar.server.tables import policy
from polar.types import Policy


def current(connection: Connection) -> Policy:
    body = connection.execute(select(policy.c.body)).scalar_one_or_none()
    return Policy() if body is None else Policy.model_validate_json(body)


def put(change: Change, wanted: Policy) -> Policy:
    """Putting what already stands is no event."""
    if wanted == current(change.connection):
        return wanted
    change.connection.execute(delete(policy))
    change.connection.execute(insert(policy).values(row=1, body=json.dumps(wanted.model_dump())))
    append(change, [News("policy", data=wanted.model_dump())])
    return wanted
