"""Tables of service tokens, logins and control actions."""

from __future__ import annotations

from sqlalchemy import Column, Float, Table, Text

from polar.server.records.tables import METADATA, growing

tokens = Table(
    "tokens",
    METADATA,
    Column("sha256", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("made", Float, nullable=False),
    Column("expires", Float),  # null: until it is rotated
)

logins = Table(
    "logins",
    METADATA,
    Column("sha256", Text, primary_key=True),  # of the cookie's value
    Column("token", Text, nullable=False),  # its sha256
    Column("expires", Float, nullable=False),
)

actions = Table(
    "actions",
    METADATA,
    growing("cursor"),
    Column("at", Float, nullable=False),
    Column("action", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("detail", Text, nullable=False),
    sqlite_autoincrement=True,
)
