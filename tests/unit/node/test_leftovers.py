"""The next node to start removes what a dead node left; it leaves that of a living one."""

from __future__ import annotations

import subprocess
from pathlib import Path

from polar.node.leftovers import claim, release, sweep
from polar.runtimes.files.folders import remove_tree
from polar.runtimes.host.processes import owner_scope
from polar.store.paths import RunPaths


def run_with_a_place(runs_dir: Path, name: str) -> RunPaths:
    paths = RunPaths.create(runs_dir, name)
    place = paths.session("s-1").create().place
    (place / "work").mkdir(parents=True)
    (place / "work" / "secret.txt").write_text("left behind")
    (paths.session("s-1").logs / "harness.stdout").write_text("kept")
    return paths


def dead_process() -> str:
    process = subprocess.Popen(["true"])
    process.wait()
    return f"{process.pid}.1"


async def test_places_of_a_dead_run_go_and_its_logs_stay(tmp_path: Path) -> None:
    paths = run_with_a_place(tmp_path, "dead")
    paths.owner.write_text(f"{owner_scope()} {dead_process()}\n")

    await sweep(tmp_path)

    assert not paths.session("s-1").place.exists()
    assert (paths.session("s-1").logs / "harness.stdout").read_text() == "kept"
    assert not paths.owner.exists()


async def test_the_place_of_an_evaluators_own_runtime_goes_too(tmp_path: Path) -> None:
    paths = run_with_a_place(tmp_path, "dead")
    paths.session("s-1").place.rename(paths.session("s-1").evaluator_place)
    paths.owner.write_text(f"{owner_scope()} {dead_process()}\n")

    await sweep(tmp_path)

    assert not paths.session("s-1").evaluator_place.exists() and not paths.owner.exists()


async def test_a_living_run_is_left_alone(tmp_path: Path) -> None:
    paths = run_with_a_place(tmp_path, "living")
    claim(paths)

    await sweep(tmp_path)

    assert paths.session("s-1").place.exists()


async def test_nodes_of_a_dead_service_are_found_in_its_run(tmp_path: Path) -> None:
    service = RunPaths.create(tmp_path, "service")
    paths = run_with_a_place(service.root / "nodes", "node")
    paths.owner.write_text(f"{owner_scope()} {dead_process()}\n")

    await sweep(tmp_path)

    assert not paths.session("s-1").place.exists()
    assert not paths.owner.exists()


async def test_a_killed_rescore_is_found_in_its_run(tmp_path: Path) -> None:
    run = RunPaths.create(tmp_path, "run")
    paths = run_with_a_place(run.rescores, "rescore")
    paths.owner.write_text(f"{owner_scope()} {dead_process()}\n")

    await sweep(tmp_path)

    assert not paths.session("s-1").place.exists()


def test_a_run_is_released_when_no_place_is_left(tmp_path: Path) -> None:
    paths = run_with_a_place(tmp_path, "ended")
    claim(paths)

    release(paths)
    assert paths.owner.exists(), "otherwise no later sweep would find the folder"

    remove_tree(paths.session("s-1").place)
    release(paths)
    assert not paths.owner.exists()


async def test_a_run_of_another_machine_or_container_cannot_be_judged(tmp_path: Path) -> None:
    paths = run_with_a_place(tmp_path, "elsewhere")
    paths.owner.write_text(f"another-boot.4026531836 {dead_process()}\n")

    await sweep(tmp_path)

    assert paths.session("s-1").place.exists()


async def test_a_broken_mark_and_a_missing_folder_do_not_stop_the_sweep(tmp_path: Path) -> None:
    paths = run_with_a_place(tmp_path, "broken")
    paths.owner.write_text("what is this")

    await sweep(tmp_path)
    await sweep(tmp_path / "nowhere")

    assert paths.session("s-1").place.exists()
