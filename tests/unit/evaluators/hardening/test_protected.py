"""What is work, and what is the task's."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.evaluators.hardening.protected import Kind, WorkChange, WorkRules, kind_of


def kind(tmp_path: Path, path: str, before: str | None, after: str | None, rules: WorkRules | None = None) -> Kind:
    def copy(folder: str, text: str | None) -> Path | None:
        if text is None:
            return None
        file = tmp_path / folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return kind_of(WorkChange(path, copy("base", before), copy("agent", after)), rules or WorkRules())


@pytest.mark.parametrize(
    "path",
    [
        *("conftest.py", "tests/deep/conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml"),
        *("sitecustomize.py", "usercustomize.py", "lib/cheat.pth"),
        *("python3", "bin/pytest", "tools/python3.11", "json.py", "src/unittest/__init__.py", "pytest.py"),
        *("tests/random.py", ".git/hooks/pre-commit", "sub/.git/hooks/post-checkout"),
    ],
)
def test_new_files_that_are_tampering(tmp_path: Path, path: str) -> None:
    assert kind(tmp_path, path, None, "x") is Kind.TAMPERING


@pytest.mark.parametrize(
    "path",
    [
        *("solution.py", "src/app/json.py", "app/types.py", "docs/python.md", "data/test", "tests/test_new.py"),
        *("test.py", "test/__init__.py", "code/readme", "setup.py", ".gitattributes"),
    ],
)
def test_new_files_that_are_work(tmp_path: Path, path: str) -> None:
    assert kind(tmp_path, path, None, "x") is Kind.WORK


@pytest.mark.parametrize(
    "path", ["__pycache__/a.pyc", ".pytest_cache/v", ".git/index", ".git/refs/heads/x", "lib/site-packages/a.pth"]
)
def test_what_changes_by_itself_is_ignored(tmp_path: Path, path: str) -> None:
    assert kind(tmp_path, path, "x", "y") is Kind.IGNORED


def test_what_is_installed_is_ignored() -> None:
    change = WorkChange(".venv/bin/python", None, Path("/bin/sh"))
    assert kind_of(change, WorkRules(), {".venv"}) is Kind.IGNORED


@pytest.mark.parametrize("path", ["tests/test_a.py", "pkg/a_test.go", "ui/x.spec.ts", "tests/data/golden.txt"])
def test_tests_of_the_base_are_restored_and_their_change_is_no_tampering(tmp_path: Path, path: str) -> None:
    assert kind(tmp_path, path, "x", "y") is Kind.RESTORED
    assert kind(tmp_path, path, "x", None) is Kind.RESTORED
    assert kind(tmp_path, path, "x", "y", WorkRules(protected=(path,))) is Kind.TAMPERING
    assert kind(tmp_path, path, "x", "y", WorkRules(allowed=(path,))) is Kind.WORK


def test_a_link_a_folder_or_a_pipe_in_place_of_a_test_is_tampering(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").symlink_to("mine.py")
    (tmp_path / "folder").mkdir()
    base = tmp_path / "base"
    for after in (tmp_path / "test_a.py", tmp_path / "folder"):
        assert kind_of(WorkChange("test_a.py", base, after), WorkRules()) is Kind.TAMPERING
    pipe = WorkChange("test_a.py", base, None, left_out="not a plain file")
    assert kind_of(pipe, WorkRules()) is Kind.TAMPERING


def test_the_evaluators_own_files(tmp_path: Path) -> None:
    rules = WorkRules(files=frozenset({"tests/check.py"}))
    assert kind(tmp_path, "tests/check.py", None, "x", rules) is Kind.RESTORED
    assert kind(tmp_path / "1", "tests/check.py/deep", None, "x", rules) is Kind.TAMPERING
    assert kind(tmp_path / "2", "tests", None, "x", rules) is Kind.TAMPERING
    (tmp_path / "new" / "tests").mkdir(parents=True)
    assert kind_of(WorkChange("tests", None, tmp_path / "new" / "tests"), rules) is Kind.WORK


@pytest.mark.parametrize(
    ("path", "before", "after", "expected"),
    [
        ("pyproject.toml", "[tool.pytest.ini_options]\naddopts='-q'", "[tool.pytest.ini_options]", Kind.TAMPERING),
        ("pyproject.toml", "[project]\nname='a'", "[project]\nname='b'", Kind.WORK),
        ("pyproject.toml", None, "[project.entry-points.pytest11]\na='b'", Kind.TAMPERING),
        ("pyproject.toml", None, "tool = 3\n[tool.pytest", Kind.TAMPERING),
        ("setup.cfg", "[metadata]\nname = a", "[metadata]\nname = b", Kind.WORK),
        ("setup.cfg", None, "[tool:pytest] # ]\naddopts = -p x", Kind.TAMPERING),
        ("setup.cfg", None, "[options.entry_points]\nconsole_scripts =\n  a = b:c", Kind.WORK),
        ("setup.cfg", None, "[options.entry_points]\npytest11 =\n  a = b", Kind.TAMPERING),
        ("tox.ini", "[tox]\nenvlist = a", "[tox]\nenvlist = b\n[pytest]\naddopts = -x", Kind.TAMPERING),
        ("setup.cfg", None, "#" * 2**20 + "\n[tool:pytest]\naddopts = -p x", Kind.TAMPERING),
        ("a.egg-info/entry_points.txt", None, "[console_scripts]\na = b:c", Kind.WORK),
        ("a.dist-info/entry_points.txt", None, "[pytest11]\na = b", Kind.TAMPERING),
        (".git/config", "[core]\n\tbare = false", "[core]\n\tbare = false\n[user]\n\tname = a", Kind.IGNORED),
        (".git/config", "[core]", "[core]\n\tfsmonitor = ./x", Kind.TAMPERING),
        (".git/config", "", '[filter "a"]\n\tsmudge = x', Kind.TAMPERING),
        (".git/info/attributes", None, "*.py filter=a", Kind.TAMPERING),
        (".git/hooks/pre-commit.sample", "a", "b", Kind.IGNORED),
    ],
)
def test_configuration_counts_where_a_runner_or_git_reads_it(
    tmp_path: Path, path: str, before: str | None, after: str, expected: Kind
) -> None:
    assert kind(tmp_path, path, before, after) is expected


def test_a_pattern_without_a_slash_matches_names(tmp_path: Path) -> None:
    assert kind(tmp_path, "deep/Makefile", "x", "y", WorkRules(protected=("Makefile",))) is Kind.TAMPERING
    assert kind(tmp_path, "deep/Makefile", "x", "y", WorkRules(protected=("./Makefile",))) is Kind.WORK
    assert kind(tmp_path, "a/b/c.sh", "x", "y", WorkRules(protected=("a/*.sh",))) is Kind.TAMPERING


@pytest.mark.parametrize("path", ["jest.config.js", "vitest.config.mts", ".mocharc.yml", "noxfile.py"])
def test_runners_of_other_kinds(tmp_path: Path, path: str) -> None:
    assert kind(tmp_path, path, "x", "y") is Kind.TAMPERING


def test_the_scripts_that_npm_test_runs(tmp_path: Path) -> None:
    before = '{"scripts": {"test": "jest", "build": "x"}}'
    assert kind(tmp_path, "package.json", before, '{"scripts": {"test": "true"}}') is Kind.TAMPERING
    assert kind(tmp_path, "package.json", before, '{"scripts": {"test": "jest"}, "a": 1}') is Kind.WORK


def test_an_allowed_path_is_that_file_only(tmp_path: Path) -> None:
    rules = WorkRules(allowed_paths=frozenset({"conftest.py", "tests/test_a.py"}))
    assert kind(tmp_path, "conftest.py", None, "x", rules) is Kind.WORK
    assert kind(tmp_path, "tests/test_a.py", "x", "y", rules) is Kind.WORK
    assert kind(tmp_path, "inner/conftest.py", None, "x", rules) is Kind.TAMPERING
