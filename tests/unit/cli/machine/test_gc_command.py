"""`polar gc` as a user meets it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fake_node import CONTROL, FakeNode, Service
from polar import registry
from polar.cli.app import app
from polar.client import SyncPolarClient
from polar.runtimes.host.processes import owner_scope
from polar.runtimes.local.runtime import LocalRuntime
from polar.server.retention import removal
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
    code, output = polar("gc", "--dry-run")
    assert code == 0 and "workspace" in output and "total" in output
    assert left.is_dir()


def test_without_a_terminal_it_needs_yes(left: Path) -> None:
    code, output = polar("gc")
    assert code == 2 and "--yes confirms it" in output
    assert left.is_dir()


def test_yes_removes_it(left: Path) -> None:
    code, output = polar("gc", "--yes")
    assert code == 0 and "removed 1" in output
    assert not left.exists()
    code, output = polar("gc", "--yes")
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
    assert "ended" not in polar("gc", "--dry-run")[1]
    code, output = polar("gc")
    assert code == 0 and "ended what 2 dead nodes or sessions had left running" in output


def test_json_names_everything(left: Path) -> None:
    code, output = polar("gc", "--yes", "--json")
    report = json.loads(output)
    assert code == 0 and report["removed"] == ["polar-runs/killed/sessions/s-0/place"] and report["problems"] == {}
    assert report["found"][0]["kind"] == "workspace"


def test_unused_checkouts_and_bundles_go_and_those_in_use_stay(left: Path, tmp_path: Path) -> None:
    for name in ("workspaces/old", "workspaces/new", "bundles/old"):
        folder = tmp_path / "cache" / name
        folder.mkdir(parents=True)
        if folder.name == "old":
            os.utime(folder, (1.0, 1.0))
    code, output = polar("gc", "--yes", "--json")
    report = json.loads(output)
    assert code == 0 and {"workspaces/old", "bundles/old"} <= set(report["removed"])
    assert {each["kind"] for each in report["found"]} == {"workspace", "checkout", "bundle"}
    assert [path.name for path in (tmp_path / "cache" / "workspaces").glob("[!.]*")] == ["new"]


def test_rules_of_a_server_need_a_server(left: Path) -> None:
    for words in (["--older-than", "7d"], ["--unfetched"]):
        code, output = polar("gc", *words)
        assert code == 2 and "--at-server" in output
    assert left.is_dir()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real server with two ended sessions, of which a client has fetched one, long ago."""
    monkeypatch.setattr(removal, "GRACE_S", -1.0)
    service = Service(tmp_path).start()
    monkeypatch.setenv("POLAR_CONTROL_TOKEN", CONTROL)
    with SyncPolarClient(service.url, CONTROL) as client:
        for name in ("read", "unread"):
            client.submit({"task_id": name, "instruction": "add"})
        node = FakeNode(service.url)
        node.serve(2)
        client.session("read-0")
        client.session_list()
    yield service.url
    service.close()


def test_at_a_server_it_shows_and_removes_what_was_fetched(served: str) -> None:
    where = ("gc", "--at-server", "--server", served, "--older-than", "1m", "--json")
    code, output = polar(*where, "--dry-run")
    report = json.loads(output)
    assert code == 0 and report["removed"] is None and report["stored"]["blobs"] == 2
    assert report["found"]["groups"] == 0  # younger than a minute
    code, output = polar("gc", "--at-server", "--server", served, "--dry-run")
    assert code == 0 and "2 uploads in the folder" in output and "retention of the server: none" in output


def test_at_a_server_it_asks_before_it_removes(served: str) -> None:
    old = ("gc", "--at-server", "--server", served, "--older-than", "0.0001m")
    code, output = polar(*old)
    assert code == 2 and "nothing was removed: --yes confirms it" in output
    code, output = polar(*old, "--yes")
    assert code == 0 and "removed 1 sessions and " in output and "MB of uploads freed" in output
    code, output = polar(*old, "--yes", "--unfetched", "--json")
    assert code == 0 and json.loads(output)["removed"]["sessions"] == 1, "also what no client has fetched"
    code, output = polar(*old, "--dry-run", "--json")
    assert json.loads(output)["stored"]["blobs"] == 0


def test_an_age_without_a_unit_is_refused(served: str) -> None:
    code, output = polar("gc", "--at-server", "--server", served, "--older-than", "7")
    assert code == 2 and "is no age" in output
