"""Tables of what a person watches: log lines, and sessions under way."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Integer, LargeBinary, Table, Text

from polar.server.records.tables import METADATA, growing, session_id_column

log_lines = Table(
    "log_lines",
    METADATA,
    growing("cursor"),
    Column("at", Float, nullable=False),
    Column("level", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("session_id", Text),
    sqlite_autoincrement=True,
)

watched = Table(
    "watched",
    METADATA,
    session_id_column(primary_key=True),
    Column("until", Float, nullable=False),  # when its node need not upload any more
    Column("attempt", Integer),  # of the upload; null: there is none yet
    Column("version", BigInteger, nullable=False, server_default="0"),  # of the upload
    Column("parts", Integer, nullable=False, server_default="0"),
)

watched_parts = Table(
    "watched_parts",
    METADATA,
    session_id_column(primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("part", LargeBinary, nullable=False),
)
