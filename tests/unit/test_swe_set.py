"""The shipped SWE set: each bug is one, each fix is one, and neither is in what an agent sees."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from polar.evaluators.pytest_report import outcomes_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "swe"
sys.path.insert(0, str(EXAMPLES))
build = __import__("build")
swe_bugs = __import__("swe_bugs")
swe_git = __import__("swe_git")
sys.path.remove(str(EXAMPLES))

BUGS = {bug.instance_id: bug for bug in swe_bugs.all_bugs()}
REPOSITORIES = [repository.name for repository in swe_bugs.repositories()]
COLUMNS = {
    *(
        "instance_id",
        "repo",
        "version",
        "base_commit",
        "environment_setup_commit",
        "problem_statement",
        "hints_text",
    ),
    *("created_at", "patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS"),
    *("image", "eval_script", "log_parser", "eval_type"),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("swe")
    build.main([str(out)])
    return out


@pytest.fixture(scope="module")
def rows(built: Path) -> dict[str, dict[str, Any]]:
    read = [json.loads(line) for line in (built / "rows.jsonl").read_text().splitlines()]
    return {row["instance_id"]: row for row in read}


def lay(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def outcomes(folder: Path, ids: list[str]) -> dict[str, str]:
    """What pytest says of each test; the project's own plug-ins and settings take no part."""
    command = [sys.executable, "-m", "pytest", "-rA", "-q", "-p", "no:cacheprovider", "tests"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    found = outcomes_of(done.stdout, ids)
    assert found, done.stdout + done.stderr
    return {test_id: found.get(test_id, "missing") for test_id in ids}


@cache
def git_out(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def checkout(built: Path, instance_id: str, folder: Path) -> Path:
    bundle = built / "bundles" / f"{instance_id}.bundle"
    subprocess.run(["git", "clone", "--quiet", str(bundle), str(folder)], check=True)
    return folder


def test_the_set_is_large_enough() -> None:
    assert len(REPOSITORIES) >= 4
    assert len(BUGS) >= 24
    assert len({bug.kind for bug in BUGS.values()}) >= 12


@pytest.mark.parametrize("name", REPOSITORIES)
def test_with_all_fixes_every_test_passes(name: str, tmp_path: Path) -> None:
    (repository,) = (each for each in swe_bugs.repositories() if each.name == name)
    bugs = repository.bugs()
    folder = lay(tmp_path, repository.files | {bug.test_path: bug.tests for bug in bugs})
    ids = sorted({test_id for bug in bugs for test_id in (*bug.fail_to_pass, *bug.pass_to_pass)})
    seen = outcomes(folder, ids)
    assert {test_id: outcome for test_id, outcome in seen.items() if outcome != "passed"} == {}


@pytest.mark.parametrize("instance_id", BUGS)
def test_with_the_bug_the_tests_of_the_bug_fail_and_no_other(instance_id: str, tmp_path: Path) -> None:
    bug = BUGS[instance_id]
    folder = lay(tmp_path, bug.broken | {bug.test_path: bug.tests})
    wanted = dict.fromkeys(bug.pass_to_pass, "passed") | dict.fromkeys(bug.fail_to_pass, "failed")
    assert outcomes(folder, list(wanted)) == wanted


@pytest.mark.parametrize("instance_id", BUGS)
def test_an_agent_sees_the_bug_alone(
    instance_id: str, built: Path, rows: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Neither the fix nor a hidden test is in any commit that it has, and the gold patch is the whole fix."""
    bug, row = BUGS[instance_id], rows[instance_id]
    folder = checkout(built, instance_id, tmp_path / "checkout")
    assert git_out(folder, "rev-parse", "HEAD").strip() == row["base_commit"]
    commits = git_out(folder, "log", "--all", "--format=%H").split()
    assert git_out(folder, "log", "HEAD", "--format=%H").split() == commits, "nothing beside or after the base"
    history = git_out(folder, "log", "--all", "--patch", "--format=%B")
    fixes = [line for line in row["patch"].splitlines() if re.match(r"\+(?!\+\+)\s*\S", line)]
    wrong = "".join(bug.broken.values())
    assert not [line for line in fixes if line[1:] not in wrong and line in history.splitlines()]
    assert not (folder / bug.test_path).exists()
    subprocess.run(["git", "apply", "-"], cwd=folder, input=row["patch"], text=True, check=True)
    fixed = {path: (folder / path).read_text(encoding="utf-8") for path in bug.repository.files}
    assert fixed == bug.repository.files
    subprocess.run(["git", "apply", "-"], cwd=folder, input=row["test_patch"], text=True, check=True)
    assert (folder / bug.test_path).read_text(encoding="utf-8") == bug.tests


@pytest.mark.parametrize("instance_id", BUGS)
def test_a_statement_does_not_give_the_fix_away(instance_id: str) -> None:
    bug = BUGS[instance_id]
    said = " ".join(bug.statement.split())
    assert 80 < len(said) < 2000
    changed = {
        line.strip()
        for change in bug.changes
        for line in {*change.right.splitlines()} ^ {*change.wrong.splitlines()}
        if len(line.strip()) > 8
    }
    assert not [line for line in changed if line in said], "a changed line"
    assert not [change.file for change in bug.changes if change.file in said], "the file"
    assert not re.search(r"\b(off.by.one|precedence|line \d+ of \w+\.py)\b", said), "the diagnosis"
    assert not [name for name in bug.fails if name in said], "a hidden test"


def test_rows_have_the_columns_of_swe_bench(rows: dict[str, dict[str, Any]]) -> None:
    assert rows.keys() == BUGS.keys()
    for row in rows.values():
        assert row.keys() == COLUMNS
        assert (row["image"], row["log_parser"], row["eval_type"]) == ("none", "parse_log_pytest", "pass_and_fail")
        assert re.fullmatch(r"[0-9a-f]{40}", row["base_commit"])
        fail, stay = json.loads(row["FAIL_TO_PASS"]), json.loads(row["PASS_TO_PASS"])
        assert fail and stay and not set(fail) & set(stay)


def test_building_twice_gives_the_same_files(built: Path, tmp_path: Path) -> None:
    def digests(root: Path) -> dict[str, str]:
        files = sorted(path for path in root.rglob("*") if path.is_file())
        return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    build.main([str(tmp_path)])
    assert digests(tmp_path) == digests(built)


@pytest.mark.parametrize("name", REPOSITORIES)
def test_the_eval_script_runs_the_tests_of_a_row(
    name: str, built: Path, rows: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Also where the agent wrote a file in place of the hidden tests and changed those that it sees."""
    bug = next(bug for bug in BUGS.values() if bug.repository.name == name)
    row = rows[bug.instance_id]
    folder = checkout(built, bug.instance_id, tmp_path / "checkout")
    (folder / bug.test_path).write_text("def test_nothing():\n    pass\n")
    seen_test = bug.repository.test_ids[0].partition("::")[0]
    (folder / seen_test).write_text("")

    def run() -> dict[str, str]:
        command = ["bash", "-c", row["eval_script"]]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        _, start, rest = done.stdout.partition(">>>>> Start Test Output")
        log, end, _ = rest.partition(">>>>> End Test Output")
        assert start and end, done.stdout
        return outcomes_of(log, [*bug.fail_to_pass, *bug.pass_to_pass])

    stay = dict.fromkeys(bug.pass_to_pass, "passed")
    assert run() == stay | dict.fromkeys(bug.fail_to_pass, "failed")
    subprocess.run(["git", "apply", "-"], cwd=folder, input=row["patch"], text=True, check=True)
    assert run() == stay | dict.fromkeys(bug.fail_to_pass, "passed")


@pytest.mark.parametrize(
    ("words", "held_out"),
    [
        (["--split", "repository", "--held-out", "sieve"], {"sieve"}),
        (["--split", "repository"], {REPOSITORIES[-1]}),
        (["--split", "bug"], set(REPOSITORIES)),
    ],
)
def test_splits(words: list[str], held_out: set[str], tmp_path: Path) -> None:
    build.main([str(tmp_path), *words])
    parts = [
        {json.loads(line)["instance_id"] for line in (tmp_path / f"{part}.jsonl").read_text().splitlines()}
        for part in ("train", "held_out")
    ]
    assert parts[0] | parts[1] == set(BUGS) and not parts[0] & parts[1]
    assert {BUGS[name].repository.name for name in parts[1]} == held_out
    if words[1] == "repository":
        assert not {BUGS[name].repository.name for name in parts[0]} & held_out


def test_a_bug_whose_text_is_not_in_the_repository_is_named(tmp_path: Path) -> None:
    bug = next(iter(BUGS.values()))
    path = bug.repository.folder / "bugs" / f"{bug.name}.toml"
    changed = tmp_path / "other.toml"
    changed.write_text(
        path.read_text() + '\n[[changes]]\nfile = "README.md"\nright = "no such text"\nwrong = ""\n'
    )
    with pytest.raises(swe_bugs.BugError, match=r"other\.toml: .*occurs 0 times in README\.md"):
        swe_bugs.read_bug(bug.repository, changed)


def test_the_harbor_folder_is_complete(built: Path) -> None:
    for instance_id in BUGS:
        folder = built / "harbor" / instance_id
        wanted = ("instruction.md", "task.toml", "environment/Dockerfile", "tests/test.sh", "solution/solve.sh")
        assert [name for name in wanted if not (folder / name).is_file()] == []
        assert os.access(folder / "tests/test.sh", os.X_OK)
        assert "reward.txt" in (folder / "tests/test.sh").read_text()
