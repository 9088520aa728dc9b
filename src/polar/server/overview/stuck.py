"""Sessions that are in their stage for longer than they can be if all is well.

Each rule is generous: a session that is listed has exceeded a budget that its node enforces, or waits although its
node could go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from polar.server.records.tables import IS_HELD, sessions, tasks
from polar.types import Budgets, NodeStatus, Stage, StuckSession

SLACK_S = 60.0
"""For heartbeats, teardown and a busy machine."""
LISTED = 50
_RUNS = sessions.c.stage == Stage.RUNNING.value


def stuck(
    connection: Connection, now: float, known: Sequence[NodeStatus], *, paused: bool
) -> tuple[StuckSession, ...]:
    """The longest in their stage first. A session without a node only waits."""
    query = (
        select(sessions, tasks.c.budgets)
        .join(tasks, tasks.c.task_id == sessions.c.task_id)
        .where(IS_HELD, sessions.c.since < now - SLACK_S)
    )
    rows = sorted(connection.execute(query), key=lambda row: row.since)
    if not rows:
        return ()
    running = Counter(connection.execute(select(sessions.c.node_id).where(IS_HELD, _RUNS)).scalars())
    has_free_slot = {node.node_id for node in known if running[node.node_id] < node.slots}
    budgets = {body: Budgets.model_validate_json(body) for body in {row.budgets for row in rows}}
    found = [
        StuckSession(
            session_id=row.session_id,
            task_id=row.task_id,
            stage=Stage(row.stage),
            since=row.since,
            node_id=row.node_id,
            why=why,
        )
        for row in rows
        if (
            why := why_stuck(row, budgets[row.budgets], now, free_slot=row.node_id in has_free_slot, paused=paused)
        )
    ]
    return tuple(found[:LISTED])


def why_stuck(row: Row[Any], budgets: Budgets, now: float, *, free_slot: bool, paused: bool) -> str:
    """Empty: it is not."""
    if row.cancelled is not None and now - row.cancelled > SLACK_S + budgets.postrun_s:
        return f"a client asked to cancel it {now - row.cancelled:.0f} s ago, and it has not ended"
    spent_s = now - row.since
    match Stage(row.stage):
        case Stage.QUEUED:
            return _queued(row, budgets, now)
        case Stage.INIT:
            return _exceeded(row.stage, spent_s, budgets.init_s, f"budgets.init_s is {budgets.init_s:g}")
        case Stage.READY:
            return _ready(spent_s, budgets, free_slot=free_slot, paused=paused)
        case Stage.RUNNING:
            return _running(row, spent_s, budgets)
        case _:
            # Files are kept before `postrun_s` begins, in as much time again; an evaluator may start a runtime.
            limit_s = 2 * budgets.postrun_s + budgets.evaluator_init_s
            own = f"budgets.postrun_s is {budgets.postrun_s:g}, evaluator_init_s {budgets.evaluator_init_s:g}"
            return _exceeded(row.stage, spent_s, limit_s, own)


def _exceeded(stage: str, spent_s: float, limit_s: float, budget: str) -> str:
    return f"{stage} for {spent_s:.0f} s; {budget}" if spent_s > limit_s + SLACK_S else ""


def _queued(row: Row[Any], budgets: Budgets, now: float) -> str:
    """Its node sets up others first, each within its own `init_s`."""
    if row.leased is None or now - row.leased <= 2 * budgets.init_s + SLACK_S:
        return ""
    return f"leased {now - row.leased:.0f} s ago and not begun; budgets.init_s is {budgets.init_s:g}"


def _ready(spent_s: float, budgets: Budgets, *, free_slot: bool, paused: bool) -> str:
    if free_slot and spent_s > SLACK_S:
        return f"READY for {spent_s:.0f} s, though its node has a free run slot"
    if paused or spent_s <= 2 * budgets.run_s + SLACK_S:
        return ""
    return f"READY for {spent_s:.0f} s; no run slot came free in twice budgets.run_s, which is {budgets.run_s:g}"


def _running(row: Row[Any], spent_s: float, budgets: Budgets) -> str:
    """Waiting for the model counts against `wait_s`, all else against `run_s`."""
    if row.waited_s > budgets.wait_s + SLACK_S:
        return f"waited {row.waited_s:.0f} s for the model; budgets.wait_s is {budgets.wait_s:g}"
    if spent_s - row.waited_s <= budgets.run_s + SLACK_S:
        return ""
    waiting = f", {row.waited_s:.0f} s of it waiting for the model" if row.waited_s >= 1 else ""
    return f"RUNNING for {spent_s:.0f} s{waiting}; budgets.run_s is {budgets.run_s:g}"
