"""`polar fetch` of a stored session."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from typer.testing import Result

from polar.store.paths import RunPaths

Polar = Callable[..., Result]


def test_the_files_of_a_session_are_copied(run: RunPaths, polar: Polar, tmp_path: Path) -> None:
    logs = run.session("add-0").create().logs
    (logs / "harness.stdout").write_text("hello\n")
    result = polar("fetch", "add-0", str(tmp_path / "copy"))
    assert result.stdout == f"2 files of session add-0 are in {tmp_path / 'copy'}\n"
    assert (tmp_path / "copy" / "logs" / "harness.stdout").read_text() == "hello\n"
    assert json.loads((tmp_path / "copy" / "session.json").read_text())["result"]["score"]["reward"] == 1.0


def test_a_folder_in_use_is_refused(run: RunPaths, polar: Polar, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").touch()
    refused = polar("fetch", "add-0", str(tmp_path / "copy"))
    assert refused.exit_code == 2 and "is not an empty folder; choose another" in refused.stderr
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["mine"]
