"""Under which ids `polar submit` sends the tasks of a file."""

from __future__ import annotations

import re

from polar.cli.service.submit import tasks_to_send
from polar.cli.task_choice import choice_of
from polar.data.tasks import check_tasks

TASKS = [{"task_id": "add", "instruction": "add"}, {"instruction": "no name"}]


def sent(*, fresh: bool, **choice: list[str]) -> list[str | None]:
    return [task.task_id for task in tasks_to_send(check_tasks(TASKS), choice_of(**choice), fresh=fresh)]


def test_a_task_without_a_name_gets_its_id_from_the_server() -> None:
    assert sent(fresh=False) == ["add", None]


def test_fresh_ids_keep_the_names() -> None:
    first, second = sent(fresh=True)
    assert re.fullmatch(r"add\.\d{8}-\d{6}-\w{4}", str(first))
    assert re.fullmatch(r"task-0002\.\d{8}-\d{6}-\w{4}", str(second))


def test_with_several_harnesses_too() -> None:
    ids = sent(fresh=True, harnesses=["pi", "codex"], filters=["task_id=add"])
    assert [re.sub(r"\d{8}-.*", "NEW", str(each)) for each in ids] == ["add.pi.NEW", "add.codex.NEW"]
