"""What the server counts of its queue with each change, compared with the sessions themselves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from desk import Desk
from sqlalchemy import Connection, select

from polar.server.records.tables import METADATA
from polar.types import Stage

Row = dict[str, Any]
Rows = Sequence[Row]


async def check_counts(desk: Desk) -> None:
    """The queue, the needs, the groups and the stages count what the sessions are, and no limit is exceeded."""
    found = await desk.state.read(_tables)
    _check_tasks(found)
    _check_groups(found)
    of_needs = Counter[int]()
    for row in found["queue"]:
        of_needs[row["needs_id"]] += row["waiting"]
    assert all(row["waiting"] == of_needs[row["needs_id"]] for row in found["needs"])
    stages = {row["stage"]: row["sessions"] for row in found["stage_counts"] if row["sessions"]}
    assert stages == Counter(row["stage"] for row in found["sessions"])


def _tables(connection: Connection) -> dict[str, Rows]:
    """As they are at one moment."""
    return {
        name: [dict(row) for row in connection.execute(select(METADATA.tables[name])).mappings()]
        for name in ("sessions", "queue", "needs", "groups", "outcomes", "stage_counts")
    }


def _check_tasks(found: dict[str, Rows]) -> None:
    of_task, in_queue = _by(found["sessions"], _task), {row["task_id"]: row for row in found["queue"]}
    for task_id, its in of_task.items():
        counted = in_queue.get(task_id, {"waiting": 0, "running": 0, "max_running": None})
        assert (counted["waiting"], counted["running"]) == (_waiting(its), _held(its)), task_id
        assert (task_id in in_queue) == any(_is_open(row) for row in its), "a task without open sessions has left"
        assert counted["max_running"] is None or counted["running"] <= counted["max_running"]


def _check_groups(found: dict[str, Rows]) -> None:
    of_group = _by(found["sessions"], _group)
    usable = Counter(row["group_id"] for row in found["outcomes"] if not row["untrainable_reason"])
    for row in found["groups"]:
        its = of_group[row["group_id"]]
        unfinished = sum(map(_is_open, its))
        assert (row["sessions"], row["unfinished"], row["running"]) == (len(its), unfinished, _held(its))
        assert (row["usable"], row["cursor"] is None) == (usable[row["group_id"]], unfinished > 0)
        assert row["max_running"] is None or row["running"] <= row["max_running"]
        if row["enough"] is not None and row["usable"] >= row["enough"]:
            assert not _waiting(its), "nothing of a group that has enough waits"
            assert row["on_enough"] == "queued" or all(
                each["cancel_requested"] for each in its if _is_open(each)
            ), "what runs of it is cancelled"


def _by(rows: Rows, key: Callable[[Row], str]) -> dict[str, list[Row]]:
    found = defaultdict[str, list[Row]](list)
    for row in rows:
        found[key(row)].append(row)
    return found


def _task(row: Row) -> str:
    return row["task_id"]


def _group(row: Row) -> str:
    return row["group_id"] or row["task_id"]


def _is_open(row: Row) -> bool:
    return not Stage(row["stage"]).final


def _held(rows: Rows) -> int:
    return sum(row["lease_expires"] is not None for row in rows)


def _waiting(rows: Rows) -> int:
    return sum(_is_open(row) and row["lease_expires"] is None for row in rows)
