"""What the server must be able to do to be ready: write to a database of its own schema version."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select, update

from polar.monitoring.readiness import Check
from polar.server.records.tables import SCHEMA_VERSION, schema
from polar.server.state import Change, State
from polar.store.database import StoreError


def checks_of(state: State) -> Mapping[str, Check]:
    async def database() -> str:
        await state.change(write_probe)
        return ""

    return {"database": database}


def write_probe(change: Change) -> None:
    """Writes for real: a full disk and a database that became read-only still answer every question. Another
    server's Polar may have migrated the database meanwhile."""
    for step in (1, -1):  # there and back: SQLite writes nothing where a value stays as it is
        change.connection.execute(update(schema).values(version=schema.c.version + step))
    version = change.connection.execute(select(schema.c.version)).scalar_one()
    if version != SCHEMA_VERSION:
        raise StoreError(f"the database has schema version {version}, this Polar needs {SCHEMA_VERSION}")
