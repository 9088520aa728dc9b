"""The shipped SWE set: each bug is one, each fix is one, and neither is in what an agent sees."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.unit.data.set_items import SetItems

from polar.data.harbor.reader import read_harbor
from polar.data.swe.row import SweRow, files_of
from polar.data.tasks import read_task_set
from polar.evaluators.pytest_report import outcomes_of
from polar.session.files.repository import checkout_of
from polar.types import Spec

EXAMPLES = Path(__file__).parents[2] / "examples" / "swe"
sys.path.insert(0, str(EXAMPLES))
build, swe_bugs = import_module("build"), import_module("swe_bugs")
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
    build.main([str(out), "--split", "bug"])
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


RUN = """
import os, sys, pytest
for folder in sys.argv[1:]:
    if os.fork() == 0:
        os.chdir(folder)
        os.dup2(os.open("log", os.O_CREAT | os.O_WRONLY), 1)
        code = pytest.main(["-rA", "-q", "-p", "no:cacheprovider", "tests"])
        sys.stdout.flush()
        os._exit(code)
    os.wait()
"""
"""Runs pytest in each folder, in a process of its own that has imported pytest already."""


@pytest.fixture(scope="module", params=REPOSITORIES)
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, str]]:
    """What pytest says of each test with each bug of a repository, and with none (an empty name); the project's
    own plug-ins and settings take no part."""
    (repository,) = (each for each in swe_bugs.repositories() if each.name == request.param)
    bugs = repository.bugs()
    root = tmp_path_factory.mktemp(repository.name)
    states = {bug.name: lay(root / bug.name, bug.broken | {bug.test_path: bug.tests}) for bug in bugs}
    states[""] = lay(root / "fixed", repository.files | {bug.test_path: bug.tests for bug in bugs})
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", RUN, *map(str, states.values())], env=env, check=True)
    ids = {test_id for bug in bugs for test_id in (*bug.fail_to_pass, *bug.pass_to_pass)}
    return {name: outcomes_of((folder / "log").read_text(), ids) for name, folder in states.items()}


def git_out(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def checkout(built: Path, instance_id: str, folder: Path) -> Path:
    return shutil.copytree(built / "harbor" / instance_id / "environment" / "repository", folder)


def test_the_set_is_large_enough() -> None:
    assert len(REPOSITORIES) >= 4
    assert len(BUGS) >= 24
    assert len({bug.kind for bug in BUGS.values()}) >= 12
    assert len({bug.statement.partition("\n")[0] for bug in BUGS.values()}) == len(BUGS), "titles tell them apart"


def bugs_in(outcomes: dict[str, dict[str, str]]) -> list[Any]:
    return [bug for bug in BUGS.values() if bug.name in outcomes]


def test_with_all_fixes_every_test_passes(outcomes: dict[str, dict[str, str]]) -> None:
    ids = {test_id for bug in bugs_in(outcomes) for test_id in (*bug.fail_to_pass, *bug.pass_to_pass)}
    assert outcomes[""] == dict.fromkeys(ids, "passed")


def test_with_a_bug_its_tests_fail_and_no_other(outcomes: dict[str, dict[str, str]]) -> None:
    bugs = bugs_in(outcomes)
    wanted = {
        bug.name: dict.fromkeys(bug.pass_to_pass, "passed") | dict.fromkeys(bug.fail_to_pass, "failed")
        for bug in bugs
    }
    assert {bug.name: outcomes[bug.name] for bug in bugs} == wanted


@pytest.mark.parametrize("instance_id", BUGS)
def test_an_agent_sees_the_bug_alone(
    instance_id: str, built: Path, rows: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Neither the fix nor a hidden test is in any commit that it has, and the gold patch is the whole fix."""
    bug, row = BUGS[instance_id], rows[instance_id]
    folder = checkout(built, instance_id, tmp_path / "checkout")
    assert git_out(folder, "rev-parse", "HEAD").strip() == row["base_commit"]
    assert git_out(folder, "status", "--porcelain") == ""
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


async def test_polar_checks_out_one_bug_of_a_repositorys_bundle(
    built: Path, rows: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path))
    row = next(iter(rows.values()))
    bundle = built / "repositories" / f"{row['repo'].replace('/', '__')}.bundle"
    folder = await checkout_of(bundle, row["base_commit"])
    objects = git_out(folder, "cat-file", "--batch-all-objects", "--batch-check").splitlines()
    commits = [line.split()[0] for line in objects if " commit " in line]
    assert sorted(commits) == sorted(git_out(folder, "log", "HEAD", "--format=%H").split())


def test_rows_have_the_columns_of_swe_bench(rows: dict[str, dict[str, Any]]) -> None:
    assert rows.keys() == BUGS.keys()
    for row in rows.values():
        assert row.keys() == COLUMNS
        assert (row["image"], row["log_parser"], row["eval_type"]) == ("none", "parse_log_pytest", "pass_and_fail")
        assert re.fullmatch(r"[0-9a-f]{40}", row["base_commit"])
        assert set(files_of(row["patch"])) == {change.file for change in BUGS[row["instance_id"]].changes}
        SweRow.model_validate(row)
        fail, stay = json.loads(row["FAIL_TO_PASS"]), json.loads(row["PASS_TO_PASS"])
        assert fail and stay and not set(fail) & set(stay)


def test_building_again_gives_the_same_files(built: Path, rows: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    build.main([str(tmp_path), "--repository", "sieve"])
    again = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(again) > 50
    for line in again.pop(Path("rows.jsonl")).splitlines():
        row = json.loads(line)
        assert row == rows[row["instance_id"]]
    assert [path for path, content in again.items() if (built / path).read_bytes() != content] == []


@pytest.mark.parametrize("name", ["packrat", "plume"])
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


def test_a_split_by_repository() -> None:
    bugs = list(BUGS.values())
    assert {bug.repository.name for bug in build.held_out_of(bugs, "repository", ["sieve"])} == {"sieve"}
    last = build.held_out_of(bugs, "repository", [])
    assert last == [bug for bug in bugs if bug.repository.name == REPOSITORIES[-1]]


def test_a_split_by_bug(built: Path) -> None:
    train, held_out = (
        {json.loads(line)["instance_id"] for line in (built / f"{part}.jsonl").read_text().splitlines()}
        for part in ("train", "held_out")
    )
    assert train | held_out == set(BUGS) and not train & held_out
    assert {BUGS[name].repository.name for name in held_out} == set(REPOSITORIES)


def test_a_bug_whose_text_is_not_in_the_repository_is_named(tmp_path: Path) -> None:
    bug = next(iter(BUGS.values()))
    path = bug.repository.folder / "bugs" / f"{bug.name}.toml"
    changed = tmp_path / "other.toml"
    changed.write_text(
        path.read_text() + '\n[[changes]]\nfile = "README.md"\nright = "no such text"\nwrong = ""\n'
    )
    with pytest.raises(swe_bugs.BugError, match=r"other\.toml: .*occurs 0 times in README\.md"):
        swe_bugs.read_bug(bug.repository, changed)


def test_a_build_replaces_an_earlier_one(tmp_path: Path) -> None:
    build.main([str(tmp_path), "--repository", "sieve", "--split", "bug"])
    build.main([str(tmp_path), "--repository", "rota"])
    names = {path.name for path in (tmp_path / "harbor").iterdir()}
    assert names == {bug.instance_id for bug in BUGS.values() if bug.repository.name == "rota"}
    assert {path.name for path in tmp_path.iterdir()} == {"harbor", "repositories", "rows.jsonl"}


def test_a_python_without_pytest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build.main([str(tmp_path), "--repository", "rota", "--python", "/no/such/python"])
    assert "/no/such/python has no pytest" in capsys.readouterr().out


@pytest.mark.parametrize(
    "runtime",
    [
        Spec(name="local"),
        Spec(name="bubblewrap", options={"image": "polar-pytest"}),
        Spec(name="docker"),
        Spec(name="apptainer", options={"image": "polar-pytest"}),
    ],
    ids=lambda spec: spec.name,
)
def test_polar_takes_every_harbor_folder(runtime: Spec, built: Path) -> None:
    found = SetItems.of(read_harbor({"folders": "harbor", "runtime": runtime}, built))
    assert found.skipped == []
    assert {item.value["task_id"] for item in found.items} == set(BUGS)


@pytest.mark.parametrize("name", ["rota", "sieve"])
def test_the_harbor_verifier_rewards_the_solution_alone(name: str, built: Path, tmp_path: Path) -> None:
    bug = [bug for bug in BUGS.values() if bug.repository.name == name][-1]
    folder = checkout(built, bug.instance_id, tmp_path / "checkout")
    task = built / "harbor" / bug.instance_id
    env = os.environ | {"TESTS_DIR": str(task / "tests"), "LOGS_DIR": str(tmp_path / "logs")}

    def reward() -> str:
        subprocess.run(["bash", task / "tests" / "test.sh"], cwd=folder, env=env, stdout=subprocess.DEVNULL)
        return (tmp_path / "logs" / "verifier" / "reward.txt").read_text()

    assert reward() == "0\n"
    subprocess.run(["bash", task / "solution" / "solve.sh"], cwd=folder, check=True)
    assert reward() == "1\n"


@pytest.mark.parametrize("name", ["pi.toml", "contained.toml"])
def test_the_task_files_read_what_is_built(name: str, built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path / "build", symlinks=True)
    found = read_task_set(Path(shutil.copy(EXAMPLES / name, tmp_path)))
    assert found.skipped == ()
    assert len(found.tasks) == len((tmp_path / "build" / found_rows(name)).read_text().splitlines())


def found_rows(name: str) -> str:
    return tomllib.loads((EXAMPLES / name).read_text())["swe"]["rows"].removeprefix("build/")


def test_the_page_lists_every_bug() -> None:
    page = (EXAMPLES.parents[1] / "docs" / "swe_set.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \| `([\w-]+)` \| ([^|]+) \| (.+) \| (\d+) / (\d+) \|$", page, re.MULTILINE)
    wanted = [
        (bug, f"{bug.repository.name}|{bug.name}|{bug.kind}|{bug.statement.partition(chr(10))[0]}")
        for bug in BUGS.values()
    ]
    numbers = [f"{text}|{len(bug.fail_to_pass)}|{len(bug.pass_to_pass)}" for bug, text in wanted]
    assert ["|".join(cells) for cells in listed] == numbers
    assert page.startswith(f"# The SWE set\n\n{len(BUGS)} bugs")
