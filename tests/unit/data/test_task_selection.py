"""Filter, shard, sample and limit choose the same tasks each time."""

from __future__ import annotations

from typing import Any

import pytest

from polar.data.task_selection import FieldFilter, Shard, TaskSelection
from polar.errors import ConfigError
from polar.types import TaskRequest

MANY = [TaskRequest(task_id=f"t{n:03}", instruction="x") for n in range(200)]


def a_task(task_id: str, **fields: Any) -> TaskRequest:
    return TaskRequest.model_validate({"task_id": task_id, "instruction": "x", **fields})


TASKS = [
    a_task("a", metadata={"repo": "django/django", "tags": ["web", "slow"]}, harness="codex"),
    a_task("b", metadata={"repo": "django/channels", "hard": True}),
    a_task("c", metadata={"repo": "psf/requests", "a.b": {"c": 3}}),
]


def ids(tasks: list[TaskRequest]) -> list[str | None]:
    return [task.task_id for task in tasks]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["metadata.repo=django/django"], ["a"]),
        (["metadata.repo=django/*"], ["a", "b"]),
        (["metadata.repo!=django/*"], ["c"]),
        (["metadata.repo=django/*", "harness!=codex"], ["b"]),
        (["metadata.tags=slow"], ["a"]),
        (["metadata.hard=true"], ["b"]),
        (["metadata.a.b.c=3"], ["c"]),
        (["harness=pi"], ["b", "c"]),
        (["task_id=[ac]"], ["a", "c"]),
    ],
)
def test_a_filter_matches_the_text_of_a_field(filters: list[str], expected: list[str]) -> None:
    selection = TaskSelection(filters=tuple(map(FieldFilter.parse, filters)))
    assert ids(selection.chosen(TASKS)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [("metadata.repo", "write FIELD=PATTERN"), ("repo=x", "a task has no field 'repo'; it has task_id")],
)
def test_a_wrong_filter_names_the_right_form(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FieldFilter.parse(text)


def test_a_filter_that_takes_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match="none of the 3 tasks is selected"):
        TaskSelection(filters=(FieldFilter.parse("metadata.repo=none"),)).chosen(TASKS)


def test_every_task_is_in_exactly_one_shard() -> None:
    shards = [TaskSelection(shard=Shard.parse(f"{n}/4")).chosen(MANY) for n in range(1, 5)]
    assert sorted(str(task.task_id) for shard in shards for task in shard) == [task.task_id for task in MANY]
    assert min(map(len, shards)) > 30
    assert shards[0] == TaskSelection(shard=Shard(1, 4)).chosen(MANY[::-1])[::-1]


def test_tasks_of_a_group_are_in_one_shard() -> None:
    grouped = [a_task(f"t{n}", group_id="g") for n in range(20)]
    sizes: list[int] = []
    for number in (1, 2):
        try:
            sizes.append(len(TaskSelection(shard=Shard(number, 2)).chosen(grouped)))
        except ConfigError:
            sizes.append(0)
    assert sorted(sizes) == [0, 20]


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b"])
def test_a_wrong_shard_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write I/N"):
        Shard.parse(text)


def test_a_sample_depends_on_the_seed_only() -> None:
    first = TaskSelection(sample=20, seed=1).chosen(MANY)
    assert len(first) == 20 and first == sorted(first, key=lambda task: str(task.task_id))
    assert ids(TaskSelection(sample=20, seed=1).chosen(MANY[::-1]))[::-1] == ids(first)
    assert ids(TaskSelection(sample=20, seed=2).chosen(MANY)) != ids(first)
    assert len(TaskSelection(sample=999).chosen(MANY)) == len(MANY)


def test_the_limit_comes_last() -> None:
    assert TaskSelection(sample=20, limit=3).chosen(MANY) == TaskSelection(sample=20).chosen(MANY)[:3]
