"""Runs that an older version stored still open, and their proofs still hold.

`tests/stored/` has whole run folders as they were left, made with the embedded engine and a script as the harness.
A change of a stored format adds a folder; it does not change one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Polar = Callable[..., Result]
STORED = sorted((Path(__file__).parents[3] / "stored").iterdir())


@pytest.fixture(params=STORED, ids=lambda folder: folder.name)
def older_run(request: Any, runs_dir: Path) -> str:
    """The id of a stored run, in the folder where the commands look."""
    run_id: str = json.loads((request.param / "run.json").read_text())["run_id"]
    shutil.copytree(request.param, runs_dir / run_id)
    return run_id


def test_it_is_listed_with_its_results(polar: Polar, older_run: str) -> None:
    listed = json.loads(polar("ls", older_run, "--json").stdout)
    stages = {row["session_id"]: row["stage"] for row in listed["sessions"]}
    assert stages == {
        "turns-0": "COMPLETED",
        "turns-1": "COMPLETED",
        "broken-0": "FAILED",
        "killed-0": "FAILED",
    }


def test_its_proofs_and_seals_hold(polar: Polar, older_run: str) -> None:
    audited = polar("audit", older_run)
    assert audited.exit_code == 0, audited.stdout
    assert "exact: every sampled token stands once" in audited.stdout


def test_the_cause_of_a_failure_is_read(polar: Polar, older_run: str) -> None:
    shown = {name: polar("show", name).stdout for name in ("broken-0", "killed-0")}
    assert "agent" in shown["killed-0"]
    assert "infrastructure" in shown["broken-0"]


def test_its_calls_are_built_again(polar: Polar, older_run: str) -> None:
    replayed = polar("replay", "turns-0")
    assert replayed.exit_code == 0, replayed.stdout
    assert "48" in replayed.stdout
