"""Needs and abilities as the database has them. Every lease reads the same few, so they are parsed once."""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import Connection, insert, select

from polar.server.records.tables import HAS_WAITING, needs
from polar.server.scheduling.needs import SessionNeeds, missing
from polar.types import NodeAbilities


@lru_cache(maxsize=4096)
def read_needs(body: str) -> SessionNeeds:
    return SessionNeeds.model_validate_json(body)


@lru_cache(maxsize=1024)
def read_abilities(body: str) -> NodeAbilities:
    return NodeAbilities.model_validate_json(body)


def needs_id_of(connection: Connection, wanted: SessionNeeds) -> int:
    """Of the row with these needs, which is made if it is missing."""
    digest = wanted.digest
    found = select(needs.c.needs_id).where(needs.c.digest == digest)
    needs_id = connection.execute(found).scalar_one_or_none()
    if needs_id is None:
        connection.execute(insert(needs).values(digest=digest, body=wanted.model_dump_json(), waiting=0))
        needs_id = connection.execute(found).scalar_one()
    return needs_id


def fulfilled(connection: Connection, node: NodeAbilities) -> tuple[list[int], list[int]]:
    """Of the needs of waiting sessions: those that the node fulfils, and the others."""
    able: list[int] = []
    unable: list[int] = []
    for needs_id, body in connection.execute(select(needs.c.needs_id, needs.c.body).where(HAS_WAITING)):
        (unable if missing(read_needs(body), node) else able).append(needs_id)
    return able, unable
