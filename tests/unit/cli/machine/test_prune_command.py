"""`polar prune` as a user meets it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polar import registry
from polar.cli.app import app
from polar.runtimes.host.processes import owner_scope
from polar.runtimes.local.runtime import LocalRuntime
from polar.store.paths import RunPaths


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The workspace of a run whose process is dead."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    paths = RunPaths.create(tmp_path / "polar-runs", "killed")
    (paths.root / "sessions" / "s-0" / "place" / "work").mkdir(parents=True)
    paths.owner.write_text(f"{owner_scope()} 999999.1\n")
    return paths.root / "sessions" / "s-0" / "place"


def polar(*words: str) -> tuple[int, str]:
    ended = CliRunner().invoke(app, list(words))
    return ended.exit_code, ended.output


def test_a_dry_run_shows_what_would_go_and_removes_nothing(left: Path) -> None:
    code, output = polar("prune", "--dry-run")
    assert code == 0 and "workspace" in output and "total" in output
    assert left.is_dir()


def test_without_a_terminal_it_needs_yes(left: Path) -> None:
    code, output = polar("prune")
    assert code == 2 and "--yes confirms it" in output
    assert left.is_dir()


def test_yes_removes_it(left: Path) -> None:
    code, output = polar("prune", "--yes")
    assert code == 0 and "removed 1" in output
    assert not left.exists()
    code, output = polar("prune", "--yes")
    assert code == 0 and "nothing to remove" in output


class LeavingRuntime(LocalRuntime):
    """Two dead nodes have left processes of it."""

    @classmethod
    async def sweep(cls) -> int:
        return 2


def test_what_killed_nodes_left_running_is_ended_even_if_their_runs_are_gone(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(left.parents[3])
    monkeypatch.setitem(registry.BUILT_IN, "runtime", {"leaving": f"{__name__}:LeavingRuntime"})
    assert "ended" not in polar("prune", "--dry-run")[1]
    code, output = polar("prune")
    assert code == 0 and "ended what 2 dead nodes or sessions had left running" in output


def test_json_names_everything(left: Path) -> None:
    code, output = polar("prune", "--yes", "--json")
    report = json.loads(output)
    assert code == 0 and report["removed"] == ["polar-runs/killed/sessions/s-0/place"] and report["problems"] == {}
    assert report["found"][0]["kind"] == "workspace"
