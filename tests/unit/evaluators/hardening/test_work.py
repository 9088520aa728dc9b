"""The agent's changes, laid over the base."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from workplace import FolderRuntime, evidence

from polar.errors import EvaluatorError, WorkspaceUnusable
from polar.evaluators.base import Evidence
from polar.evaluators.hardening.protected import WorkRules
from polar.evaluators.hardening.work import LaidWork, lay_work


@pytest.fixture
def places(tmp_path: Path) -> Evidence:
    """A session's runtime and the evaluator's own, both with the task's base."""
    runtimes = [FolderRuntime(tmp_path / name) for name in ("session", "own")]
    for runtime in runtimes:
        fill(runtime.folder, {"a.py": "1", "b.py": "1", "pkg/c.py": "1", "tests/test_a.py": "1", ".git/HEAD": "1"})
    return msgspec.structs.replace(evidence(runtimes[0], own_runtime=runtimes[1]), logs=tmp_path / "logs")


def fill(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def folders(places: Evidence) -> tuple[Path, Path]:
    return Path(places.runtime.workspace), Path(places.own_runtime.workspace if places.own_runtime else "")


def tree(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


async def test_changed_new_and_removed_files_are_laid_and_the_tasks_own_stay(places: Evidence) -> None:
    agent, own = folders(places)
    fill(agent, {"a.py": "2", "new/d.py": "2", "tests/test_a.py": "2", ".git/HEAD": "2", "__pycache__/a.pyc": "2"})
    (agent / "b.py").unlink()
    laid = await lay_work(places, WorkRules())
    assert laid == LaidWork(
        work=("a.py", "b.py", "new", "new/d.py"),
        restored=("tests/test_a.py",),
        ignored=(".git/HEAD", "__pycache__", "__pycache__/a.pyc"),
    )
    assert tree(own) == {"a.py": "2", "pkg/c.py": "1", "new/d.py": "2", "tests/test_a.py": "1", ".git/HEAD": "1"}
    assert places.logs is not None and "restored: tests/test_a.py\n" in (places.logs / "work.txt").read_text()


async def test_kinds_and_modes_change_too(places: Evidence) -> None:
    agent, own = folders(places)
    (agent / "a.py").unlink()
    fill(agent, {"a.py/now/a/folder": "2"})
    (agent / "pkg/c.py").unlink()
    (agent / "pkg").rmdir()
    (agent / "pkg").write_text("a file")
    (agent / "b.py").chmod(0o755)
    (agent / "link").symlink_to("b.py")
    (agent / "empty").mkdir()
    await lay_work(places, WorkRules())
    assert (own / "a.py/now/a/folder").read_text() == "2"
    assert (own / "pkg").read_text() == "a file"
    assert (own / "b.py").stat().st_mode & 0o111
    assert os.readlink(own / "link") == "b.py"
    assert (own / "empty").is_dir()


async def test_a_removed_folder_is_removed(places: Evidence) -> None:
    agent, own = folders(places)
    (agent / "pkg/c.py").unlink()
    (agent / "pkg").rmdir()
    await lay_work(places, WorkRules())
    assert not (own / "pkg").exists()


async def test_after_tampering_nothing_is_laid(places: Evidence) -> None:
    agent, own = folders(places)
    fill(agent, {"a.py": "2", "conftest.py": "2"})
    laid = await lay_work(places, WorkRules())
    assert laid.reasons() == ("tampering: the agent changed conftest.py, which is the task's",)
    assert (own / "a.py").read_text() == "1"


async def test_pipes_links_outside_and_large_files_are_left_out(places: Evidence) -> None:
    agent, own = folders(places)
    os.mkfifo(agent / "pipe")
    (agent / "a.py").unlink()
    (agent / "a.py").symlink_to("/etc/passwd")
    with (agent / "large").open("wb") as file:
        file.truncate(10_000)
    laid = await lay_work(places, WorkRules(), cap_bytes=1000)
    assert sorted(laid.left_out) == [
        "a.py: a link that leads outside",
        "large: 10000 bytes are over the cap",
        "pipe: not a plain file",
    ]
    assert not (own / "a.py").exists() and not (own / "large").exists() and not (own / "pipe").exists()


async def test_odd_names(places: Evidence) -> None:
    agent, own = folders(places)
    odd = ["-rf", "a b", "new\nline", "$HOME", "it's"]
    for folder in (agent, own):
        fill(folder, dict.fromkeys(odd, "1"))
    for name in odd[:3]:
        (agent / name).unlink()
    fill(agent, dict.fromkeys(odd[3:], "2"))
    await lay_work(places, WorkRules())
    assert {name: text for name, text in tree(own).items() if name in odd} == {"$HOME": "2", "it's": "2"}


async def test_an_agent_without_a_workspace_is_at_fault(places: Evidence) -> None:
    agent, _ = folders(places)
    agent.rename(agent.with_name("gone"))
    with pytest.raises(WorkspaceUnusable):
        await lay_work(places, WorkRules())
    agent.write_text("a file")
    with pytest.raises(WorkspaceUnusable, match="no longer a folder"):
        await lay_work(places, WorkRules())


async def test_a_base_over_the_cap_is_no_fault_of_the_agent(places: Evidence) -> None:
    _, own = folders(places)
    fill(own, {"large": "x" * 2000})
    with pytest.raises(EvaluatorError, match="larger than cap_bytes"):
        await lay_work(places, WorkRules(), cap_bytes=1000)


async def test_without_a_runtime_of_its_own_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(EvaluatorError, match="runtime of its own"):
        await lay_work(evidence(FolderRuntime(tmp_path)), WorkRules())


async def test_a_removal_that_cannot_be_repeated_is_no_verdict(
    places: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another user owns the file in the evaluator's runtime."""
    agent, _ = folders(places)
    (agent / "b.py").unlink()
    refusing = tmp_path / "bin" / "rm"
    fill(tmp_path, {"bin/rm": "#!/bin/sh\necho 'not permitted' >&2\nexit 1\n"})
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{refusing.parent}:{os.environ['PATH']}")
    with pytest.raises(EvaluatorError, match="cannot be laid over the base: not permitted"):
        await lay_work(places, WorkRules())
