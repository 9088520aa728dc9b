"""The journal's SQL: its tables, and the statements that write and read them.

A session that runs again keeps the rows of its earlier attempts; queries read the newest. A change of the tables
raises `SCHEMA_VERSION`.
"""

from __future__ import annotations

SCHEMA_VERSION = 1
"""Stored as `PRAGMA user_version`."""

TABLES = (
    """
    CREATE TABLE sessions (
        number INTEGER NOT NULL PRIMARY KEY,    -- grows, so it is the order
        session_id TEXT NOT NULL UNIQUE,
        attempt INTEGER NOT NULL,               -- the newest one; calls, stages and results name theirs
        stage TEXT NOT NULL,
        lease TEXT NOT NULL
    )
    """,
    """
    CREATE TABLE stages (
        number INTEGER NOT NULL PRIMARY KEY,    -- grows, so it is the order
        session_id TEXT NOT NULL REFERENCES sessions (session_id),
        attempt INTEGER NOT NULL,
        stage TEXT NOT NULL,
        at FLOAT NOT NULL
    )
    """,
    "CREATE INDEX ix_stages_session_id ON stages (session_id)",
    """
    CREATE TABLE calls (
        call_id TEXT NOT NULL PRIMARY KEY,
        session_id TEXT NOT NULL REFERENCES sessions (session_id),
        attempt INTEGER NOT NULL,
        sequence INTEGER NOT NULL,              -- within the attempt, from 1
        parent_id TEXT,
        kind TEXT NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        sampled_tokens INTEGER NOT NULL,
        received BOOLEAN NOT NULL,              -- overrides what the body says
        body BLOB NOT NULL,
        UNIQUE (session_id, attempt, sequence)  -- also the index by session
    )
    """,
    """
    CREATE TABLE results (
        session_id TEXT NOT NULL REFERENCES sessions (session_id),
        attempt INTEGER NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (session_id, attempt)
    )
    """,
)

ADD_SESSION = """
    INSERT INTO sessions (session_id, attempt, stage, lease) VALUES (:session_id, :attempt, :stage, :lease)
    ON CONFLICT (session_id) DO UPDATE
    SET attempt = excluded.attempt, stage = excluded.stage, lease = excluded.lease
    WHERE excluded.attempt > sessions.attempt
"""
"""Changes no row if the attempt is already there."""
ATTEMPT = "SELECT attempt FROM sessions WHERE session_id = ?"
APPEND_CALL = """
    INSERT INTO calls (call_id, session_id, attempt, sequence, parent_id, kind,
                       prompt_tokens, sampled_tokens, received, body)
    SELECT :call_id, session_id, attempt,
           (SELECT coalesce(max(sequence), 0) + 1 FROM calls AS earlier
            WHERE earlier.session_id = sessions.session_id AND earlier.attempt = sessions.attempt),
           :parent_id, :kind, :prompt_tokens, :sampled_tokens, :received, :body
    FROM sessions WHERE session_id = :session_id
"""
MARK_RECEIVED = "UPDATE calls SET received = 1 WHERE call_id = ?"
RECORD_STAGE = """
    INSERT INTO stages (session_id, attempt, stage, at)
    SELECT session_id, attempt, :stage, :at FROM sessions WHERE session_id = :session_id
"""
SET_STAGE = """
    UPDATE sessions SET stage = :stage WHERE session_id = :session_id AND NOT EXISTS
        (SELECT 1 FROM results AS r WHERE r.session_id = sessions.session_id AND r.attempt = sessions.attempt)
"""
"""A deferred stage must not replace that of a result written meanwhile."""
SAVE_RESULT = "INSERT INTO results (session_id, attempt, body) VALUES (:session_id, :attempt, :body)"
END_SESSION = "UPDATE sessions SET stage = :stage WHERE session_id = :session_id"

CALLS = """
    SELECT body, received FROM calls JOIN sessions USING (session_id, attempt)
    WHERE session_id = ? ORDER BY sequence
"""
STAGES = """
    SELECT stages.stage, at FROM stages JOIN sessions USING (session_id, attempt)
    WHERE session_id = ? ORDER BY stages.number
"""
RESULT = "SELECT body FROM results JOIN sessions USING (session_id, attempt) WHERE session_id = ?"
RESULTS = "SELECT body FROM results JOIN sessions USING (session_id, attempt) ORDER BY sessions.number"
SESSION_IDS = "SELECT session_id FROM sessions ORDER BY number"
STRAYS = """
    SELECT session_id FROM calls UNION SELECT session_id FROM stages UNION SELECT session_id FROM results
    EXCEPT SELECT session_id FROM sessions ORDER BY session_id
"""
LEASE = "SELECT lease, stage FROM sessions WHERE session_id = ?"
SESSIONS = """
    SELECT lease, stage, count(call_id), coalesce(sum(sampled_tokens), 0)
    FROM sessions LEFT JOIN calls USING (session_id, attempt) GROUP BY sessions.number ORDER BY sessions.number
"""
