"""What an evaluation runs: a task set through several harnesses and runtimes, as tasks of one run.

A task of the set becomes one task for each harness and runtime. Its metadata says which task of the set it is and
in which variant, so that a stored run, or a server's results, can be read as an evaluation later.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from pydantic import ValidationError

from polar.data.stored_tasks import StoredTasks, set_origin
from polar.data.tasks import check_tasks
from polar.errors import ConfigError
from polar.trainers.evaluation import Variant, VariantResults
from polar.types import SessionResult, Spec, Strict, TaskRequest

METADATA_KEY = "polar_eval"
LONGEST_ID = 128


class EvalLabel(Strict):
    """Which task of a set a task of a run is, and in which variant."""

    task: str
    harness: str
    runtime: str


class NamedSpec(NamedTuple):
    """A plug-in that replaces the task's own, and its name in the report."""

    name: str
    spec: Spec

    def over(self, own: Spec) -> Spec:
        """A bare name that is the task's own keeps the task's options."""
        return own if self.spec.name == own.name and not self.spec.options else self.spec


def read_spec(text: str) -> Spec:
    """`pi`, or with options `codex:{"version": "0.50.0"}`."""
    name, brace, options = text.partition(":{")
    try:
        values = (
            {"name": name, "options": msgspec.json.decode(f"{{{options}", type=dict[str, object])}
            if brace
            else name
        )
        return Spec.model_validate(values)
    except (msgspec.MsgspecError, ValidationError) as error:
        raise ConfigError(
            f"{text!r} is not a plug-in: write NAME, or NAME:{{...}} with its options as JSON"
        ) from error


def planned(
    tasks: Sequence[TaskRequest], harnesses: Sequence[Spec], runtimes: Sequence[Spec], suffix: str = ""
) -> StoredTasks:
    """The tasks to run. Without harnesses or runtimes each task has its own. `suffix`: makes the ids new at a
    server that has seen the set before."""
    pairs = [(harness, runtime) for harness in _named(harnesses) for runtime in _named(runtimes)]
    made = check_tasks(
        _variant(task, harness, runtime, distinct=len(pairs) > 1, suffix=suffix)
        for task in tasks
        for harness, runtime in pairs
    )
    made.origin = set_origin(tasks)
    return made


def without_training(tasks: Sequence[TaskRequest]) -> StoredTasks:
    """The tasks without what serves a trainer: a group that ends its other sessions when it has enough, the end of
    sessions at an update of the policy, and the delivery of results. Each would change what is measured, or tell a
    trainer of sessions that it did not ask for."""
    return StoredTasks(map(_measured, tasks), set_origin(tasks))


def _measured(task: TaskRequest) -> TaskRequest:
    bound = task.staleness
    unset = {name: TaskRequest.model_fields[name].default for name in ("enough", "on_enough", "callback_url")}
    marked = None if bound is None else bound.model_copy(update={"action": "mark"})
    return task.model_copy(update={**unset, "staleness": marked})


def label_of(task: TaskRequest) -> EvalLabel:
    """Of a task that `planned` made, or of any other."""
    found = task.metadata.get(METADATA_KEY)
    try:
        return EvalLabel.model_validate(found)
    except ValidationError:
        return EvalLabel(task=task.task_id or "", harness=task.harness.name, runtime=task.runtime.name)


def variants_of(policy: str, sessions: Iterable[tuple[TaskRequest, SessionResult]]) -> list[VariantResults]:
    """The sessions of one policy, by harness and runtime."""
    results = defaultdict[tuple[str, str], list[SessionResult]](list)
    task_of = dict[str, str]()
    for task, result in sessions:
        label = label_of(task)
        task_of[result.task_id] = label.task
        results[label.harness, label.runtime].append(result)
    return [
        VariantResults(Variant(policy=policy, harness=harness, runtime=runtime), found, task_of)
        for (harness, runtime), found in results.items()
    ]


def _named(specs: Sequence[Spec]) -> list[NamedSpec | None]:
    """With a number behind a name that is used before; None: the task's own."""
    if not specs:
        return [None]
    seen = Counter[str]()
    named = list[NamedSpec | None]()
    for spec in specs:
        seen[spec.name] += 1
        named.append(NamedSpec(spec.name if seen[spec.name] == 1 else f"{spec.name}-{seen[spec.name]}", spec))
    return named


def _variant(
    task: TaskRequest, harness: NamedSpec | None, runtime: NamedSpec | None, *, distinct: bool, suffix: str
) -> TaskRequest:
    label = EvalLabel(
        task=task.task_id or "",
        harness=harness.name if harness else task.harness.name,
        runtime=runtime.name if runtime else task.runtime.name,
    )
    parts = [label.task, *([each.name for each in (harness, runtime) if each] if distinct else []), suffix]
    return task.model_copy(
        update={
            "task_id": joined_id(part for part in parts if part),
            "harness": harness.over(task.harness) if harness else task.harness,
            "runtime": runtime.over(task.runtime) if runtime else task.runtime,
            "group_id": None,
            "metadata": {**task.metadata, METADATA_KEY: label.model_dump()},
        }
    )


def joined_id(parts: Iterable[str]) -> str:
    """Cut at the beginning, where it is too long: the end tells variants apart."""
    text = re.sub(r"[^A-Za-z0-9._-]", "-", ".".join(parts))
    return text[-(LONGEST_ID - 8) :].lstrip("._-")
