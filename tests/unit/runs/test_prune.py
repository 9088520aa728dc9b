"""What `polar prune` removes, and what it leaves alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from polar.node.leftovers import claim
from polar.runs.prune import Prunable, find_prunable, mounted_paths, prune, size_of
from polar.runtimes.host.processes import owner_scope
from polar.runtimes.images.busybox import BUSYBOX
from polar.runtimes.images.catalog import RECORD_FILE, ImageRecord, images_dir, root_folder
from polar.store.paths import RunPaths

DAY_S = 86400.0
DEAD = "999999.1"
"""An owner whose process does not exist."""


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def a_run(runs: Path, name: str, *, alive: bool) -> RunPaths:
    paths = RunPaths.create(runs, name)
    for folder in ("place", "evaluator-place"):
        (paths.root / "sessions" / "s-0" / folder / "work").mkdir(parents=True)
        (paths.root / "sessions" / "s-0" / folder / "work" / "file").write_text("x" * 10_000)
    (paths.root / "sessions" / "s-0" / "logs").mkdir()
    (paths.warm / "1" / "place").mkdir(parents=True)
    if alive:
        claim(paths)
    else:
        paths.owner.write_text(f"{owner_scope()} {DEAD}\n")
    return paths


def a_built_image(name: str, *, used_days_ago: float) -> Path:
    folder = images_dir() / name
    (folder / "root").mkdir(parents=True)
    built = time.time() - used_days_ago * DAY_S
    record = ImageRecord(recipe=BUSYBOX, versions={}, tar_sha256="", tar_bytes=0, built=built)
    (folder / RECORD_FILE).write_text(record.model_dump_json())
    return folder


async def found(runs: Path, days: float = 14) -> list[Prunable]:
    return await find_prunable(runs, days * DAY_S)


async def test_workspaces_of_dead_runs_go_and_their_logs_stay(runs: Path) -> None:
    dead, live = a_run(runs, "dead", alive=False), a_run(runs, "live", alive=True)
    items = await found(runs)
    assert [(each.kind, Path(each.name).name) for each in items] == [
        ("workspace", "place"),
        ("workspace", "evaluator-place"),
        ("workspace", "place"),
    ]
    assert all(each.size_bytes >= 10_000 for each in items[:2])
    assert await prune(items) == {}
    assert sorted(path.name for path in (dead.root / "sessions" / "s-0").iterdir()) == ["logs"]
    assert (live.root / "sessions" / "s-0" / "place" / "work" / "file").is_file()
    assert not dead.owner.exists() and not (dead.warm / "1" / "place").exists()
    assert (live.warm / "1" / "place").exists()


async def test_images_that_were_not_used_for_long_go(runs: Path) -> None:
    old, new = a_built_image("old", used_days_ago=20), a_built_image("new", used_days_ago=2)
    assert [each.name for each in await found(runs)] == ["old"]
    assert await prune(await found(runs)) == {}
    assert not old.exists()
    assert new.exists()


async def test_a_session_in_an_image_is_a_use(runs: Path) -> None:
    a_built_image("old", used_days_ago=20)
    root_folder("old")
    assert await found(runs) == []


async def test_an_image_that_is_mounted_is_in_use(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_built_image("old", used_days_ago=20)
    monkeypatch.setattr("polar.runs.prune.mounted_paths", lambda: {str((folder / "root").resolve())})
    assert await found(runs) == []


async def test_pulled_images_have_the_time_of_their_last_use(runs: Path, tmp_path: Path) -> None:
    for name, days in (("old-1", 20), ("new-1", 1)):
        folder = tmp_path / "cache" / "apptainer-images" / name
        (folder / "root").mkdir(parents=True)
        at = time.time() - days * DAY_S
        os.utime(folder, (at, at))
    assert [each.name for each in await found(runs)] == ["old-1"]
    assert await prune(await found(runs)) == {}
    assert not (tmp_path / "cache" / "apptainer-images" / "old-1").exists()


async def test_what_cannot_be_removed_is_named_and_the_rest_goes(runs: Path, tmp_path: Path) -> None:
    async def refuse() -> None:
        raise OSError("in use")

    stuck = Prunable("task image", "stuck", 1, 0.0, refuse)
    a_built_image("old", used_days_ago=20)
    assert await prune([stuck, *await found(runs)]) == {"stuck": "in use"}
    assert await found(runs) == []


def test_mounts_of_this_machine_are_seen() -> None:
    assert "/" in mounted_paths()


def test_the_size_is_what_it_takes_on_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1))
    os.symlink("/", tmp_path / "link")
    assert 512 <= size_of(tmp_path) < 100_000


async def test_a_checkout_that_is_used_after_it_was_found_stays(runs: Path, tmp_path: Path) -> None:
    """While the user was asked, a session has begun to copy it."""
    folder = tmp_path / "cache" / "workspaces" / "abc"
    folder.mkdir(parents=True)
    (folder / "file").write_text("x")
    os.utime(folder, (1.0, 1.0))
    chosen = await found(runs)
    assert [each.kind for each in chosen] == ["checkout"]
    os.utime(folder)
    problems = await prune(chosen)
    assert "used" in problems["workspaces/abc"]
    assert (folder / "file").is_file()
