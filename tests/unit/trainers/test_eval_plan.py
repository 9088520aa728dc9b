"""A task set through several harnesses: unique tasks in one run, one task of the set in the report."""

from __future__ import annotations

import pytest

from polar.errors import ConfigError
from polar.trainers.eval_plan import label_of, planned, read_spec, variants_of, without_training
from polar.types import SessionResult, Spec, Stage, Staleness, TaskRequest

TASK = TaskRequest(
    task_id="add", instruction="Add.", harness=Spec(name="shell", options={"command": "true"}), group_id="sums"
)


def test_without_overrides_a_task_keeps_its_id_and_plugins() -> None:
    (task,) = planned([TASK], [], [])
    assert (task.task_id, task.harness, task.group_id) == ("add", TASK.harness, None)
    assert label_of(task).model_dump() == {"task": "add", "harness": "shell", "runtime": "local"}


def test_what_serves_a_trainer_is_left_out_of_an_evaluation() -> None:
    """Sessions are cancelled neither because others are enough nor because the policy was updated."""
    given = {
        "enough": 2,
        "on_enough": "queued",
        "callback_url": "http://127.0.0.1:9",
        "staleness": Staleness(max_updates=3),
    }
    (task,) = without_training([TASK.model_copy(update=given)])
    assert (task.enough, task.on_enough, task.callback_url) == (None, "cancel", None)
    assert task.staleness == Staleness(max_updates=3, action="mark")
    assert without_training([TASK]) == [TASK]


def test_a_task_of_several_harnesses_keeps_its_delivery() -> None:
    """`polar submit --harness` plans with the same function, for a trainer."""
    url = "http://127.0.0.1:9"
    (task,) = planned([TASK.model_copy(update={"callback_url": url})], [Spec(name="pi")], [])
    assert task.callback_url == url


def test_each_harness_and_runtime_gets_a_task_of_its_own() -> None:
    tasks = planned([TASK], [Spec(name="pi"), Spec(name="pi", options={})], [Spec(name="local")], suffix="r1")
    assert [task.task_id for task in tasks] == ["add.pi.local.r1", "add.pi-2.local.r1"]
    assert [label_of(task).harness for task in tasks] == ["pi", "pi-2"]
    assert {label_of(task).task for task in tasks} == {"add"}


def test_a_long_id_keeps_its_end() -> None:
    long = TASK.model_copy(update={"task_id": "x" * 128})
    ids = [task.task_id or "" for task in planned([long], [Spec(name="pi"), Spec(name="codex")], [])]
    assert ids[0].endswith(".pi") and ids[1].endswith(".codex") and max(map(len, ids)) <= 120


def test_specs_are_names_with_or_without_options() -> None:
    assert read_spec("pi") == Spec(name="pi")
    assert read_spec('codex:{"version": "1"}') == Spec(name="codex", options={"version": "1"})
    assert read_spec('my.module:Class:{"a": 1}') == Spec(name="my.module:Class", options={"a": 1})
    with pytest.raises(ConfigError, match="as JSON"):
        read_spec("pi:{a}")


def test_sessions_are_sorted_into_variants_by_their_labels() -> None:
    tasks = planned([TASK], [Spec(name="pi"), Spec(name="codex")], [])
    sessions = [
        (
            task,
            SessionResult(
                session_id=f"{task.task_id}-0", task_id=str(task.task_id), index=0, attempt=1, stage=Stage.FAILED
            ),
        )
        for task in tasks
    ]
    pi, codex = variants_of("base", sessions)
    assert (pi.variant.harness, codex.variant.harness) == ("pi", "codex")
    assert [pi.task_of[result.task_id] for result in pi.results] == ["add"]


def test_a_task_of_any_run_is_its_own_label() -> None:
    assert label_of(TASK).task == "add"
