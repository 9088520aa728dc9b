"""Runtimes that stand in for a Harbor folder's image, and the folders that allow it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from folders import TOML, make_folder, task, why_skipped

LOCAL: dict[str, Any] = {"name": "local"}
BUBBLEWRAP: dict[str, Any] = {"name": "bubblewrap"}
WITH_IMAGE: dict[str, Any] = {"name": "bubblewrap", "options": {"image": "polar-base"}}


def test_a_dockerfile_that_only_copies_one_folder_needs_no_docker(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    found = task(tmp_path, runtime=WITH_IMAGE)
    assert found["workspace"] == {"folder": str(folder / "environment" / "app")}
    assert found["runtime"] == {"name": "bubblewrap", "options": {"image": "polar-base", "workspace": "/app"}}
    assert task(tmp_path, runtime=LOCAL)["runtime"] == {"name": "local", "options": {}}


def test_one_that_copies_nothing_begins_empty(tmp_path: Path) -> None:
    make_folder(tmp_path, **{"environment/Dockerfile": "FROM debian:12\nWORKDIR /app\n"})
    assert "workspace" not in task(tmp_path, runtime=WITH_IMAGE)


@pytest.mark.parametrize(
    ("dockerfile", "why"),
    [
        ("FROM a\nWORKDIR /app\nRUN make\n", "its Dockerfile has RUN"),
        ("FROM a\nENV A=b\n", "its Dockerfile has ENV"),
        ("FROM a\nWORKDIR /app\nCOPY app/ /app/\nCOPY other /x\n", "copies more than one folder"),
        ("FROM a\nWORKDIR /app\nCOPY app/ /elsewhere/\n", "copies more than one folder"),
        ("FROM a\nWORKDIR /app\nCOPY --from=b app/ /app/\n", "copies more than one folder"),
        (None, "it has no environment/Dockerfile"),
    ],
)
def test_any_other_needs_docker_or_a_named_workspace(tmp_path: Path, dockerfile: str | None, why: str) -> None:
    folder = make_folder(tmp_path, **{"environment/Dockerfile": dockerfile})
    assert why in why_skipped(tmp_path, runtime=WITH_IMAGE)
    make_folder(tmp_path, **{"task.toml": "[metadata.polar]\nworkspace = 'environment/app'"})
    assert task(tmp_path, runtime=WITH_IMAGE)["workspace"] == {"folder": str(folder / "environment" / "app")}


@pytest.mark.parametrize(
    ("workspace", "why"), [("environment/none", "there is no folder"), ("tests", "must be below environment")]
)
def test_a_named_workspace_is_part_of_the_environment(tmp_path: Path, workspace: str, why: str) -> None:
    make_folder(tmp_path, **{"task.toml": f"[metadata.polar]\nworkspace = '{workspace}'"})
    assert why in why_skipped(tmp_path, runtime=WITH_IMAGE)


def test_without_a_root_of_its_own_the_verifier_has_to_find_its_folders_by_variables(tmp_path: Path) -> None:
    make_folder(tmp_path, **{"tests/test.sh": "echo 1 >/logs/verifier/reward.txt\n"})
    for runtime in (LOCAL, BUBBLEWRAP):
        assert "no /tests and /logs of its own" in why_skipped(tmp_path, runtime=runtime)
    assert task(tmp_path, runtime=WITH_IMAGE)["task_id"] == "fix"
    make_folder(tmp_path, **{"tests/test.sh": "sh /tests/more.sh; echo 1 >$LOGS_DIR/verifier/reward.txt\n"})
    assert "no /tests and /logs of its own" in why_skipped(tmp_path, runtime=LOCAL)


def test_a_runtime_that_cannot_place_its_workspace_runs_no_folder_that_names_its_path(tmp_path: Path) -> None:
    make_folder(tmp_path, **{"instruction.md": "Write /app/answer.txt."})
    assert "instruction.md names /app, which this runtime does not have" in why_skipped(tmp_path, runtime=LOCAL)
    assert task(tmp_path, runtime=BUBBLEWRAP)["runtime"]["options"]["workspace"] == "/app"
    make_folder(tmp_path, **{"instruction.md": "Fix /application.", "tests/check.py": "open('/app/a')"})
    assert "tests/check.py names /app" in why_skipped(tmp_path, runtime=LOCAL)


def test_limits_that_the_runtime_cannot_enforce_are_listed(tmp_path: Path) -> None:
    make_folder(tmp_path, **{"task.toml": f"{TOML}cpus = 2\nstorage_mb = 100"})
    assert task(tmp_path, runtime=LOCAL)["metadata"]["harbor"]["not_enforced"] == ["cpus", "disk_bytes"]
    found = task(tmp_path, runtime=BUBBLEWRAP)
    assert found["runtime"]["options"]["limits"] == {"cpus": 2.0, "disk_bytes": 100 * 2**20}
    assert found["metadata"]["harbor"]["not_enforced"] == []
