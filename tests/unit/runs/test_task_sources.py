"""A workspace that this machine does not have is found before anything runs, with a line for each task."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from polar.errors import ConfigError
from polar.runs.task_sources import check_sources, shown_ids
from polar.types import TaskRequest

NO_COMMIT = "0" * 40


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "calc"
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    subprocess.run(["git", *identity, "-C", folder, "commit", "-qm", "x", "--allow-empty"], check=True)
    subprocess.run(["git", "-C", folder, "bundle", "create", "-q", tmp_path / "calc.bundle", "main"], check=True)
    return folder


def a_task(task_id: str, **workspace: Any) -> TaskRequest:
    return TaskRequest.model_validate({"task_id": task_id, "instruction": "x", "workspace": workspace or None})


def head_of(repository: Path) -> str:
    return subprocess.check_output(["git", "-C", repository, "rev-parse", "HEAD"], text=True).strip()


async def test_what_is_there_is_accepted(repository: Path) -> None:
    bundle = str(repository.parent / "calc.bundle")
    head = head_of(repository)
    sources = [{"folder": str(repository)}, {"git": str(repository)}, {"git": bundle, "ref": "main"}]
    await check_sources([a_task(f"t{n}", **source) for n, source in enumerate([*sources, {}])])
    await check_sources([a_task("a", git=bundle, ref=head), a_task("b", git=str(repository), ref=head)])


async def test_each_missing_source_has_a_line_of_its_own(repository: Path) -> None:
    tasks = [
        a_task("good", git=str(repository)),
        a_task("folder", folder="/no/such/folder"),
        a_task("bundle", git="/no/such.bundle"),
        a_task("ref", git=str(repository), ref="v9"),
        a_task("commit", git=str(repository.parent / "calc.bundle"), ref=NO_COMMIT),
        a_task("not-git", git=str(repository.parent / "nothing"), ref=NO_COMMIT),
    ]
    with pytest.raises(ConfigError) as refused:
        await check_sources(tasks)
    lines = str(refused.value).splitlines()[1:]
    assert [line.strip().split(":")[0] for line in lines] == [f"task {task.task_id}" for task in tasks[1:]]
    assert "/no/such/folder: not on this node" in lines[0]
    assert "has no ref 'v9'" in lines[2] and "It has: main" in lines[2]
    assert f"has no commit {NO_COMMIT}" in lines[3]


async def test_a_source_that_many_tasks_share_is_named_for_each_of_them() -> None:
    with pytest.raises(ConfigError, match=r"task a: .*\n.*task b: "):
        await check_sources([a_task("a", folder="/no/such"), a_task("b", folder="/no/such")])


def test_few_of_many_ids_are_shown() -> None:
    tasks = [a_task(f"t{n}") for n in range(12)]
    assert shown_ids(tasks[:2]) == "t0, t1"
    assert shown_ids(tasks).endswith("t9 and 2 more")
