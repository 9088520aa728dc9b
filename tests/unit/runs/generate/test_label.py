"""An attempt at a server is a task of its own, and leads back to the task that it is of."""

from __future__ import annotations

import pytest
from generated_results import a_task

from polar.errors import ConfigError
from polar.runs.generate.label import AttemptLabel, label_of_task, own_task, served_task

RUN = "20260101-120000-abcd"


@pytest.mark.parametrize("fields", [{}, {"group_id": "g"}, {"group_id": "add", "metadata": {"repo": "a/b"}}])
def test_the_way_there_and_back(fields: dict[str, object]) -> None:
    task = a_task("add", num_samples=4, **fields)
    label = AttemptLabel(task="add", index=2, group_id=task.group_id)
    served = served_task(task, label, RUN)
    assert (served.task_id, served.session_id(0)) == (f"add.{RUN}.002", f"add.{RUN}.002-0")
    assert served.group == f"{task.group}.{RUN}"
    assert label_of_task(served) == label and own_task(served, 4) == task


def test_an_attempt_after_a_cancelled_one_has_another_id() -> None:
    served = served_task(a_task("add"), AttemptLabel(task="add", index=0, attempt=2), RUN)
    assert served.task_id == f"add.{RUN}.000.2"


def test_a_task_that_ran_here_has_no_label() -> None:
    task = a_task("add", metadata={"polar_generate": "mine"})
    assert label_of_task(task) is None
    assert own_task(task, 3) == task.model_copy(update={"num_samples": 3})


def test_an_id_that_is_too_long_is_refused() -> None:
    name = "x" * 110
    with pytest.raises(ConfigError, match="shorten it to 90"):
        served_task(a_task(name), AttemptLabel(task=name, index=0), RUN)
