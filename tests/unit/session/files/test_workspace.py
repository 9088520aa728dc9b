"""What a workspace begins with: folders, repositories and bundles, and the steps that ready it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from bench import IDENTITY, Begin, workspace_of

from polar.session.files.repository import RepositoryError
from polar.session.files.workspace import WorkspaceError, base_of, prepare
from polar.types import WorkspaceSource
from waiting import until

NOBODY = 65534


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def git(folder: Path, *arguments: str) -> str:
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", **IDENTITY}
    done = subprocess.run(["git", "-C", str(folder), *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(folder: Path, text: str) -> str:
    (folder / "file").write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "-qm", text)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Commits one, two, three on main; tags v1, v2 (annotated), v3; a branch `side` from two."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for number, text in enumerate(("one", "two", "three"), start=1):
        commit(folder, text)
        git(folder, "tag", f"v{number}", *(("-m", "annotated") if number == 2 else ()))
    git(folder, "branch", "side", "v2")
    return folder


async def checkout(repository: Path, ref: str = "HEAD") -> Path:
    found = await base_of(WorkspaceSource(git=str(repository), ref=ref))
    assert found is not None
    return found


class TestFolders:
    async def test_a_task_without_a_source_begins_empty(self) -> None:
        assert await base_of(None) is None

    async def test_a_folder_is_taken_as_it_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "a" / "b").mkdir(parents=True)
        assert await base_of(WorkspaceSource(folder=str(tmp_path / "a"))) == tmp_path / "a"
        monkeypatch.chdir(tmp_path)
        assert await base_of(WorkspaceSource(folder="a/b/..")) == tmp_path / "a"

    async def test_one_that_is_missing_or_none(self, tmp_path: Path) -> None:
        with pytest.raises(WorkspaceError, match=r"workspace\.folder: .*/missing: not on this node"):
            await base_of(WorkspaceSource(folder=str(tmp_path / "missing")))
        (tmp_path / "file").touch()
        with pytest.raises(WorkspaceError, match="is not a folder"):
            await base_of(WorkspaceSource(folder=str(tmp_path / "file")))
        with pytest.raises(WorkspaceError, match="null"):
            await base_of(WorkspaceSource(folder="a\0b"))


class TestRepositories:
    async def test_the_branch_that_is_checked_out(self, repository: Path) -> None:
        folder = await checkout(repository)
        assert (folder / "file").read_text() == "three"
        assert git(folder, "branch", "--show-current") == "main"
        assert git(folder, "status", "--porcelain") == ""

    @pytest.mark.parametrize(
        ("ref", "text", "branch"),
        [
            ("main", "three", "main"),
            ("side", "two", "side"),
            ("refs/heads/side", "two", "side"),
            ("v1", "one", ""),
            ("v2", "two", ""),
            ("refs/tags/v2", "two", ""),
        ],
    )
    async def test_a_ref(self, repository: Path, ref: str, text: str, branch: str) -> None:
        folder = await checkout(repository, ref)
        assert (folder / "file").read_text() == text
        assert git(folder, "branch", "--show-current") == branch

    async def test_a_commit(self, repository: Path) -> None:
        folder = await checkout(repository, git(repository, "rev-parse", "main~2"))
        assert (folder / "file").read_text() == "one"

    async def test_a_head_without_a_branch(self, repository: Path) -> None:
        git(repository, "checkout", "-q", "--detach", "v1")
        folder = await checkout(repository)
        assert (folder / "file").read_text() == "one" and git(folder, "branch", "--show-current") == ""

    async def test_the_past_is_known_and_the_future_is_not(self, repository: Path) -> None:
        folder = await checkout(repository, "v2")
        assert sorted(git(folder, "log", "--format=%s", "--all").split()) == ["one", "two"]
        assert git(folder, "tag").split() == ["v1", "v2"]
        objects = git(folder, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
        assert git(repository, "rev-parse", "v3") not in objects, "the answer may be in a later commit"
        assert git(folder, "remote") == "" and str(repository) not in "".join(
            path.read_text() for path in (folder / ".git").iterdir() if path.is_file() and path.name != "index"
        )

    async def test_a_checkout_is_made_once(self, repository: Path, cache: Path) -> None:
        first, again = await asyncio.gather(checkout(repository, "v1"), checkout(repository, "v1"))
        assert first == again
        commit(repository, "four")
        assert await checkout(repository, "v1") == first, "what moves elsewhere does not matter"
        assert (await checkout(repository) / "file").read_text() == "four"
        assert len(list((cache / "workspaces").glob("[!.]*"))) == 2

    async def test_a_bare_one_and_one_of_short_history(self, repository: Path, tmp_path: Path) -> None:
        git(tmp_path, "clone", "-q", "--bare", str(repository), "bare.git")
        assert (await checkout(tmp_path / "bare.git", "side") / "file").read_text() == "two"
        git(tmp_path, "clone", "-q", "--depth=1", repository.as_uri(), "shallow")
        assert (await checkout(tmp_path / "shallow") / "file").read_text() == "three"

    async def test_submodules_are_not_followed(self, repository: Path, tmp_path: Path) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        git(inner, "init", "-q")
        commit(inner, "inner")
        git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
        git(repository, "commit", "-qm", "with a submodule")
        folder = await checkout(repository)
        assert list((folder / "sub").iterdir()) == []


class TestBundles:
    @pytest.fixture
    def bundle(self, repository: Path, tmp_path: Path) -> Path:
        git(repository, "bundle", "create", "-q", str(tmp_path / "all.bundle"), "--all")
        return tmp_path / "all.bundle"

    async def test_head_branches_tags_and_commits(self, repository: Path, bundle: Path) -> None:
        head = await checkout(bundle)
        assert (head / "file").read_text() == "three" and git(head, "branch", "--show-current") == "main"
        assert (await checkout(bundle, "side") / "file").read_text() == "two"
        assert (await checkout(bundle, "v2") / "file").read_text() == "two"
        first = await checkout(bundle, git(repository, "rev-parse", "v1"))
        assert git(first, "log", "--format=%s", "--all") == "one"

    async def test_one_without_a_head(self, repository: Path, tmp_path: Path) -> None:
        git(repository, "bundle", "create", "-q", str(tmp_path / "b.bundle"), "side")
        assert (await checkout(tmp_path / "b.bundle", "side") / "file").read_text() == "two"
        with pytest.raises(RepositoryError, match=r"has no ref 'HEAD'.* It has: side"):
            await checkout(tmp_path / "b.bundle")

    async def test_one_that_is_cut_off_or_none(self, bundle: Path, tmp_path: Path, cache: Path) -> None:
        bundle.write_bytes(bundle.read_bytes()[:-30])
        with pytest.raises(RepositoryError, match="neither a repository nor a complete bundle"):
            await checkout(bundle)
        (tmp_path / "text").write_text("hello")
        with pytest.raises(RepositoryError, match="neither a repository nor a complete bundle"):
            await checkout(tmp_path / "text")
        assert list((cache / "bundles").glob("[!.]*")) == []


class TestRefusals:
    async def test_no_such_path(self, tmp_path: Path) -> None:
        with pytest.raises(WorkspaceError, match=r"workspace\.git: .*/none: not on this node"):
            await checkout(tmp_path / "none")

    async def test_no_repository(self, tmp_path: Path) -> None:
        with pytest.raises(RepositoryError, match=r"cannot be read as a git repository: .*does not appear to be"):
            await checkout(tmp_path)

    async def test_no_such_ref(self, repository: Path) -> None:
        with pytest.raises(RepositoryError, match=r"no ref 'mian'; give a branch.*: main, side, v1, v2, v3"):
            await checkout(repository, "mian")

    @pytest.mark.parametrize("ref", ["--upload-pack=touch x", "HEAD~1", "../x", "a b", "-"])
    async def test_what_is_no_name(self, repository: Path, ref: str) -> None:
        with pytest.raises(RepositoryError, match=re.escape(f"no ref {ref!r}")):
            await checkout(repository, ref)

    async def test_no_such_commit(self, repository: Path, cache: Path) -> None:
        with pytest.raises(RepositoryError, match=f"cannot fetch commit {'1' * 40} from"):
            await checkout(repository, "1" * 40)
        assert list((cache / "workspaces").glob("[!.]*")) == []

    async def test_an_id_that_is_not_of_a_commit(self, repository: Path) -> None:
        blob = git(repository, "rev-parse", "HEAD:file")
        with pytest.raises(RepositoryError, match=f"cannot fetch commit {blob} from"):
            await checkout(repository, blob)

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can give a repository to somebody else")
    async def test_another_users_repository(self, repository: Path) -> None:
        for path in (repository, repository / ".git"):
            os.chown(path, NOBODY, NOBODY)
        with pytest.raises(RepositoryError, match=r"dubious ownership.*make a bundle of it"):
            await checkout(repository)

    async def test_a_node_without_git(self, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nonexistent")
        with pytest.raises(RepositoryError, match=r"git is needed on this machine"):
            await checkout(repository)


async def test_nothing_of_a_hostile_repository_runs(repository: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    trap.chmod(0o755)
    (repository / ".gitattributes").write_text("* filter=x\n")
    commit(repository, "four")
    for hook in ("post-checkout", "reference-transaction", "post-index-change", "pre-auto-gc"):
        shutil.copy(trap, repository / ".git" / "hooks" / hook)
    for key in ("core.fsmonitor", "filter.x.smudge", "filter.x.clean", "uploadpack.packObjectsHook", "core.pager"):
        git(repository, "config", key, str(trap))
    (tmp_path / "sprung").unlink(missing_ok=True)
    folder = await checkout(repository)
    assert not (tmp_path / "sprung").exists()
    assert (folder / "file").read_text() == "four"
    assert not (folder / ".git" / "hooks").exists() and "filter" not in (folder / ".git" / "config").read_text()


class TestPrepare:
    async def test_steps_run_in_order_in_the_workspace(self, begin: Begin) -> None:
        steps = ["echo one >file", {"run": "echo $WORD >>file; pwd", "env": {"WORD": "two"}}]
        live = await begin(prepare=steps)
        assert live.runtime is not None
        await prepare(live.runtime, live.task)
        assert (workspace_of(live) / "file").read_text() == "one\ntwo\n"
        assert (live.paths.logs / "prepare-2.stdout").read_text().strip() == live.runtime.workspace

    async def test_a_step_that_fails_is_named_with_its_last_words(self, begin: Begin) -> None:
        live = await begin(prepare=["true", "echo too bad >&2; exit 7", "touch never"])
        assert live.runtime is not None
        with pytest.raises(WorkspaceError) as caught:
            await prepare(live.runtime, live.task)
        assert str(caught.value) == ("prepare step 2 (echo too bad >&2; exit 7) exited with code 7: too bad")
        assert not (workspace_of(live) / "never").exists()

    async def test_it_is_tried_again(self, begin: Begin) -> None:
        flaky = "echo x >>tries; [ $(wc -l <tries) -ge 3 ]"
        live = await begin(prepare=[{"run": flaky, "retries": 2}])
        assert live.runtime is not None
        await prepare(live.runtime, live.task, pause_s=0.01)
        assert (workspace_of(live) / "tries").read_text() == "x\n" * 3

    async def test_but_not_for_ever(self, begin: Begin) -> None:
        live = await begin(prepare=[{"run": "echo x >>tries; kill -9 $$", "retries": 2}])
        assert live.runtime is not None
        with pytest.raises(WorkspaceError, match="ended by signal 9 and printed nothing, tried 3 times"):
            await prepare(live.runtime, live.task, pause_s=0.01)
        assert (workspace_of(live) / "tries").read_text() == "x\n" * 3

    async def test_a_step_that_hangs_is_ended_with_its_children(self, begin: Begin) -> None:
        live = await begin(prepare=[{"run": "sleep 600 & echo $! >pid; wait", "timeout_s": 3.0}])
        assert live.runtime is not None
        with pytest.raises(WorkspaceError, match="did not finish within 3 s"):
            await prepare(live.runtime, live.task)
        assert not is_alive(int((workspace_of(live) / "pid").read_text()))

    async def test_a_cancel_ends_it(self, begin: Begin) -> None:
        live = await begin(prepare=[{"run": "sleep 600 & echo $! >pid; mv pid ready; wait", "retries": 5}])
        assert live.runtime is not None
        task = asyncio.create_task(prepare(live.runtime, live.task))
        ready = workspace_of(live) / "ready"
        await until(ready.exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not is_alive(int(ready.read_text()))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
