"""Tasks that are not in memory behave like a list of them."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from polar.data.row_store import RowStore
from polar.data.stored_tasks import PickedTasks, StoredTasks
from polar.data.tasks import check_tasks, read_tasks
from polar.errors import PolarError
from polar.types import TaskRequest

TASKS = [
    TaskRequest(task_id=name, instruction=f"do {name}", files={"a.txt": name}, metadata={"n": n})
    for n, name in enumerate("abcd")
]


def test_they_come_back_as_they_were_in_their_order() -> None:
    stored = StoredTasks(TASKS)
    assert len(stored) == 4 and list(stored) == TASKS and stored == TASKS
    assert (stored[0], stored[-1], stored[1:3]) == (TASKS[0], TASKS[3], TASKS[1:3])
    with pytest.raises(IndexError):
        stored[4]
    assert stored != TASKS[:3] and stored != StoredTasks(TASKS[::-1])


def test_a_task_is_found_by_its_id() -> None:
    stored = StoredTasks(TASKS)
    assert stored.find("c") == TASKS[2]
    assert stored.find("none") is None


def test_the_first_of_two_tasks_with_one_id_stays() -> None:
    stored = StoredTasks()
    assert stored.add(TASKS[0], "line 1") is None
    assert stored.add(TASKS[1].model_copy(update={"task_id": "a"}), "line 2") == "line 1"
    assert stored == [TASKS[0]]


def test_several_may_read_at_the_same_time() -> None:
    stored = StoredTasks(TASKS)
    assert [(one.task_id, other.task_id) for one in stored for other in stored][:5] == [
        ("a", "a"),
        ("a", "b"),
        ("a", "c"),
        ("a", "d"),
        ("b", "a"),
    ]


def test_some_of_them_are_picked_by_position() -> None:
    picked = PickedTasks(StoredTasks(TASKS), [0, 2])
    assert picked == [TASKS[0], TASKS[2]] and len(picked) == 2
    assert picked[-1] == TASKS[2]


def test_rows_larger_than_the_page_cache_come_back() -> None:
    rows = RowStore()
    for number in range(64):
        rows.add(str(number), bytes([number]) * 100_000)
    assert [row[0] for row in rows] == list(range(64))
    assert rows.at(63) == b"\x3f" * 100_000 and rows.find("7") == b"\x07" * 100_000


def test_a_full_disk_is_an_error_with_its_remedy() -> None:
    rows = RowStore()
    rows._database.execute("PRAGMA max_page_count = 10")  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(PolarError, match="full; set SQLITE_TMPDIR"):
        rows.add("large", b"x" * 100_000)


def test_reading_a_set_takes_a_fraction_of_its_size(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    lines = (json.dumps({"task_id": f"t{number}", "instruction": "x" * 1_000}) + "\n" for number in range(2_000))
    path.write_text("".join(lines))
    check_tasks([{"instruction": "loads what is loaded once"}])
    tracemalloc.start()
    try:
        assert sum(task.num_samples for task in read_tasks(path)) == 2_000
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 4
    finally:
        tracemalloc.stop()
