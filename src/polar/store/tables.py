"""The journal's tables. A change of their shape raises `SCHEMA_VERSION`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION = 1
"""Kept in the database as `PRAGMA user_version`."""

METADATA = MetaData()


def _session_id(**options: Any) -> Column[str]:
    return Column("session_id", ForeignKey("sessions.session_id"), nullable=False, **options)


sessions = Table(
    "sessions",
    METADATA,
    Column("number", Integer, primary_key=True),  # grows, so it is the order
    Column("session_id", Text, nullable=False, unique=True),
    Column("attempt", Integer, nullable=False),  # the newest one; calls, stages and results name theirs
    Column("stage", Text, nullable=False),
    Column("lease", Text, nullable=False),
)

stages = Table(
    "stages",
    METADATA,
    Column("number", Integer, primary_key=True),  # grows, so it is the order
    _session_id(index=True),
    Column("attempt", Integer, nullable=False),
    Column("stage", Text, nullable=False),
    Column("at", Float, nullable=False),
)

calls = Table(
    "calls",
    METADATA,
    Column("call_id", Text, primary_key=True),
    _session_id(),
    Column("attempt", Integer, nullable=False),
    Column("sequence", Integer, nullable=False),  # within the attempt, from 1
    Column("parent_id", Text),
    Column("kind", Text, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("sampled_tokens", Integer, nullable=False),
    Column("received", Boolean, nullable=False),  # overrides what the body says
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("session_id", "attempt", "sequence"),  # also the index by session
)

results = Table(
    "results",
    METADATA,
    _session_id(primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("body", Text, nullable=False),
)
