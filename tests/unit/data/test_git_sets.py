"""Task sets in git repositories: the commit that is named, fetched once, and clear words for what is missing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from polar.data.git_sets import GitAddress, fetched
from polar.data.stored_tasks import set_origin
from polar.data.task_selection import TaskSelection
from polar.data.tasks import read_tasks
from polar.errors import ConfigError


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false")
        command = ["git", *who, "-C", str(self.folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, **files: str) -> str:
        """Files by path, `__` for a dot and `/` as it is; the new commit."""
        for name, text in files.items():
            path = self.folder / name.replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", "x")
        return self.git("rev-parse", "HEAD")

    @property
    def address(self) -> str:
        return f"git+file://{self.folder}"


def tasks(*names: str) -> str:
    return "".join(json.dumps({"task_id": name, "instruction": "x"}) + "\n" for name in names)


def ids(source: str) -> list[str | None]:
    return [task.task_id for task in read_tasks(Path(source))]


def refusal(source: str) -> str:
    with pytest.raises(ConfigError) as refused:
        read_tasks(Path(source))
    return str(refused.value)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    return Repository(tmp_path / "set")


def test_a_branch_a_tag_and_a_commit_name_what_is_read(repository: Repository) -> None:
    first = repository.commit(tasks__jsonl=tasks("old"))
    repository.git("tag", "-m", "x", "v1")
    repository.git("checkout", "--quiet", "-b", "feature/new")
    second = repository.commit(tasks__jsonl=tasks("new", "newer"))
    repository.git("checkout", "--quiet", "main")
    assert ids(repository.address) == ids(f"{repository.address}@main") == ["old"]
    assert ids(f"{repository.address}@v1") == ids(f"{repository.address}@{first}") == ["old"]
    assert ids(f"{repository.address}@feature/new") == ids(f"{repository.address}@{second}") == ["new", "newer"]


def test_the_address_with_the_commit_stays_with_the_tasks(repository: Repository) -> None:
    commit = repository.commit(tasks__jsonl=tasks("a", "b"))
    found = read_tasks(Path(repository.address))
    assert set_origin(found) == f"{repository.address}@{commit}"
    assert set_origin(TaskSelection(limit=1).chosen(found)) == set_origin(found)


def test_a_commit_that_was_fetched_needs_no_repository(repository: Repository, tmp_path: Path) -> None:
    commit = repository.commit(tasks__jsonl=tasks("a"))
    repository.commit(tasks__jsonl=tasks("b"))
    assert ids(f"{repository.address}@{commit}") == ["a"]
    repository.folder.rename(tmp_path / "gone")
    assert ids(f"{repository.address}@{commit}") == ["a"]
    assert "does not appear to be a git repository" in refusal(repository.address) or "does not exist" in refusal(
        repository.address
    )


def test_paths_of_tasks_are_seen_from_the_set(repository: Repository) -> None:
    task = json.dumps({"instruction": "x", "workspace": {"folder": "start"}})
    repository.commit(**{"sets/one__jsonl": task, "sets/start/a__txt": "a"})
    (found,) = read_tasks(Path(f"{repository.address}#sets/one.jsonl"))
    assert found.workspace is not None and Path(found.workspace.folder or "", "a.txt").read_text() == "a"
    assert not list(fetched(repository.address + "#sets").path.parent.rglob(".git"))


def test_a_folder_is_chosen_behind_the_hash(repository: Repository) -> None:
    repository.commit(
        **{
            "pyproject__toml": "",
            "easy/tasks__jsonl": tasks("e"),
            "easy/more__jsonl": "x",
            "hard/set__jsonl": tasks("h"),
        }
    )
    assert ids(f"{repository.address}#easy") == ["e"], "a file named tasks comes first"
    assert ids(f"{repository.address}@main#hard/") == ["h"]


def test_a_data_set_of_rows_is_read_as_a_folder(repository: Repository) -> None:
    repository.commit(**{"README__md": "x", "data/train-0__jsonl": tasks("a"), "data/train-1__jsonl": tasks("b")})
    assert ids(repository.address) == ["a", "b"]


def test_what_is_missing_or_unclear_is_named(repository: Repository) -> None:
    commit = repository.commit(README__md="x")
    assert "no parquet, JSONL or JSON file in it" in refusal(repository.address)
    assert f"there is no 'none' at commit {commit}" in refusal(f"{repository.address}#none")
    assert "there is no '../..'" in refusal(f"{repository.address}#../..")
    assert "has no ref 'v9'; give a branch, a tag or a whole commit id. It has: main" in refusal(
        f"{repository.address}@v9"
    )
    missing = "0" * 40
    assert f"it has no commit {missing} on a branch or tag" in refusal(f"{repository.address}@{missing}")
    repository.commit(a__jsonl=tasks("a"), b__toml="")
    assert "Write it behind the #: a.jsonl, b.toml" in refusal(repository.address)


def test_without_git_the_error_says_so(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.commit(tasks__jsonl=tasks("a"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert "git is needed on this machine, but it is not on PATH" in refusal(repository.address)


@pytest.mark.parametrize(
    ("text", "url", "rev", "inside"),
    [
        ("git+https://host/o/n", "https://host/o/n", "HEAD", ""),
        ("git+https:/host/o/n@v1#a/b", "https://host/o/n", "v1", "a/b"),
        ("git+https://me:secret@host/o/n.git@feat/x", "https://me:secret@host/o/n.git", "feat/x", ""),
        ("git+ssh://git@host/o/n#t.toml", "ssh://git@host/o/n", "HEAD", "t.toml"),
        ("git+file:///srv/sets@main", "file:///srv/sets", "main", ""),
        ("git+file:/srv/sets", "file:///srv/sets", "HEAD", ""),
    ],
)
def test_addresses(text: str, url: str, rev: str, inside: str) -> None:
    found = GitAddress.parse(text)
    assert found == (url, rev, inside)
    assert "secret" not in found.shown


@pytest.mark.parametrize("text", ["git+ext://sh -c id", "git+https://", "git+sftp://host/x", "git+nothing"])
def test_other_addresses_are_refused(text: str) -> None:
    assert "the address of a set begins with git+https://" in refusal(text)
