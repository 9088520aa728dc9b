from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.data.set_items import SetItems

from calc_row import F2P, GOLD, calc_row, eval_script, git, make_bundle, make_repository
from polar.data.swe import reader
from polar.data.swe.reader import read_swe
from polar.data.swe.task import ONE_COMMIT, STRIP
from polar.data.tasks import read_task_set
from polar.errors import ConfigError
from polar.types import TaskRequest


class Set:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commit = make_bundle(folder / "calc", folder / "repositories" / "local__calc.bundle")

    def row(self, name: str = "local__calc-1", **changes: Any) -> dict[str, Any]:
        return calc_row(self.commit, instance_id=name) | changes

    def read(self, *rows: Any, **table: Any) -> SetItems:
        (self.folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return SetItems.of(read_swe({"rows": "rows.jsonl", "repositories": "repositories"} | table, self.folder))

    def task(self, *, table: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        (item,), skipped = self.read(self.row(**changes), **(table or {}))
        assert skipped == []
        TaskRequest.model_validate(item.value)
        return item.value

    def problem(self, *, table: dict[str, Any] | None = None, **changes: Any) -> str:
        items, (skipped,) = self.read(self.row(**changes), **(table or {}))
        assert items == [] and skipped.where == "rows.jsonl, line 1"
        return skipped.why


@pytest.fixture
def rows(tmp_path: Path) -> Set:
    return Set(tmp_path)


def test_a_row_becomes_a_task(rows: Set) -> None:
    task = rows.task()
    assert task["task_id"] == "local__calc-1"
    assert "div(1, 2) is 0. It has to be 0.5." in task["instruction"]
    bundle = str(rows.folder / "repositories" / "local__calc.bundle")
    assert task["workspace"] == {"git": bundle, "ref": rows.commit}
    options = task["evaluator"]["options"]
    assert (options["fail_to_pass"], options["test_files"], options["gold_files"]) == (
        [F2P],
        ["test_calc.py"],
        ["calc.py"],
    )
    assert "runtime" not in task, "the task file's own"


def test_the_agent_gets_nothing_of_the_solution_and_the_tests(rows: Set) -> None:
    task = rows.task()
    evaluator = task.pop("evaluator")
    assert "test_div" not in json.dumps(task) and "a / b" not in json.dumps(task)
    assert "a / b" not in json.dumps(evaluator), "nor is the gold patch anywhere else"


def test_a_task_file_reads_its_rows(rows: Set) -> None:
    rows.read(rows.row())
    file = rows.folder / "tasks.toml"
    defaults = '[defaults]\nharness = "codex"\nbudgets = { run_s = 60 }\n'
    file.write_text(f'{defaults}[swe]\nrows = "rows.jsonl"\nrepositories = "repositories"\n')
    (task,) = read_task_set(file).tasks
    assert (task.harness.name, task.budgets.run_s, task.budgets.postrun_s) == ("codex", 60, 2100)


class TestChoice:
    def names(self, found: SetItems) -> list[str]:
        return [item.value["task_id"] for item in found.items]

    def test_by_instance_repository_and_limit(self, rows: Set) -> None:
        make_bundle(rows.folder / "other", rows.folder / "repositories" / "local__other.bundle")
        some = [rows.row("a"), rows.row("b", repo="local/other"), rows.row("c")]
        assert self.names(rows.read(*some)) == ["a", "b", "c"]
        assert self.names(rows.read(*some, instances=["c", "a"])) == ["a", "c"]
        assert self.names(rows.read(*some, repos=["local/other"])) == ["b"]
        assert self.names(rows.read(*some, exclude_repos=["local/other"])) == ["a", "c"]
        assert self.names(rows.read(*some, limit=2)) == ["a", "b"]

    def test_the_limit_counts_rows_that_can_run(self, rows: Set) -> None:
        found = rows.read(rows.row("a", base_commit="0" * 40), rows.row("b"), rows.row("c"), limit=1)
        assert self.names(found) == ["b"]

    def test_a_seed_gives_the_same_order_each_time(self, rows: Set) -> None:
        some = [rows.row(f"r{number}") for number in range(20)]
        first = self.names(rows.read(*some, shuffle_seed=7))
        assert first == self.names(rows.read(*reversed(some), shuffle_seed=7))
        assert first != self.names(rows.read(*some, shuffle_seed=8))
        assert sorted(first) == sorted(row["instance_id"] for row in some)

    def test_names_that_no_row_has_are_listed(self, rows: Set) -> None:
        skipped = rows.read(rows.row(), instances=["local__calc-1", "other"], repos=["local/calc", "x/y"]).skipped
        assert [each.where for each in skipped] == ["instances: other", "repos: x/y"]


class TestSkipped:
    def test_a_bad_row_does_not_keep_the_others_from_running(self, rows: Set) -> None:
        items, skipped = rows.read("no object", {}, rows.row(FAIL_TO_PASS="["), rows.row())
        assert len(items) == 1
        assert [each.where for each in skipped] == [f"rows.jsonl, line {number}" for number in (1, 2, 3)]

    def test_a_second_row_with_the_same_id(self, rows: Set) -> None:
        (_, skipped) = rows.read(rows.row(), rows.row())
        assert [each.why for each in skipped] == ["instance_id 'local__calc-1' is used at rows.jsonl, line 1 too"]

    def test_a_repository_that_is_not_there(self, rows: Set) -> None:
        assert "neither x__y.bundle nor x__y" in rows.problem(repo="x/y")
        assert "names no folder of repositories" in rows.problem(table={"repositories": None})

    def test_a_base_commit_that_is_not_there(self, rows: Set) -> None:
        assert "local__calc.bundle does not have its base_commit 000" in rows.problem(base_commit="0" * 40)
        assert "a whole commit id is needed" in rows.problem(base_commit="main")

    def test_a_bundle_that_is_none(self, rows: Set) -> None:
        (rows.folder / "repositories" / "x__y.bundle").write_text("not a bundle")
        assert "neither a repository nor a complete bundle" in rows.problem(repo="x/y")

    def test_an_empty_problem_statement(self, rows: Set) -> None:
        assert rows.problem(problem_statement=" ").endswith("problem_statement: empty")

    def test_no_script_and_no_way_to_make_one(self, rows: Set) -> None:
        why = rows.problem(eval_script="", FAIL_TO_PASS=["test_x (a.b)"])
        assert "name a command for 'local/calc' in test_commands" in why

    def test_an_image_that_is_not_on_this_machine(self, rows: Set, monkeypatch: pytest.MonkeyPatch) -> None:
        async def here() -> frozenset[str]:
            return frozenset({"here/x:latest"})

        monkeypatch.setattr(reader, "images_here", here)
        table = {"only_local_images": True}
        assert "does not have its image 'gone/x'" in rows.problem(image="gone/x", table=table)
        assert rows.task(image="here/x", table=table)["runtime"]["options"]["image"] == "here/x"


class TestTable:
    @pytest.mark.parametrize(
        ("table", "problem"),
        [
            ({"rows": "rows.txt"}, "ends in"),
            ({"rows": "none.jsonl"}, "no such file"),
            ({"repositories": "nowhere"}, "is not a folder"),
            ({"instruction": "Fix it."}, "every task would be the same"),
            ({"instruction": "{patch}"}, "cannot be filled"),
            ({"image": "{patch}"}, "cannot be filled"),
            ({"limit": 0}, "limit"),
            ({"oops": 1}, "oops"),
        ],
    )
    def test_a_wrong_table_is_an_error(self, rows: Set, table: dict[str, Any], problem: str) -> None:
        with pytest.raises(ConfigError, match=problem):
            rows.read(rows.row(), **table)

    def test_without_the_package_the_error_names_the_extra(
        self, rows: Set, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reader, "is_installed", lambda: False)
        with pytest.raises(ConfigError, match=r"polar-rollout\[swe\]"):
            rows.read(rows.row())

    def test_an_own_instruction(self, rows: Set) -> None:
        task = rows.task(table={"instruction": "In {repo} {{v}}: {problem_statement}"})
        assert task["instruction"] == "In local/calc {v}: div(1, 2) is 0. It has to be 0.5."

    def test_hints_only_where_the_instruction_asks_for_them(self, rows: Set) -> None:
        assert "look at div" not in rows.task(hints_text="look at div")["instruction"]
        table = {"instruction": "{problem_statement} {hints_text}"}
        assert "look at div" in rows.task(hints_text="look at div", table=table)["instruction"]

    def test_braces_of_a_statement_stay(self, rows: Set) -> None:
        assert "{repo} {x}" in rows.task(problem_statement="{repo} {x}")["instruction"]

    def test_options_of_the_evaluator(self, rows: Set) -> None:
        options = rows.task(table={"evaluator": {"junit": False}, "timeout_s": 60})["evaluator"]["options"]
        assert (options["junit"], options["timeout_s"]) == (False, 60)


class TestImages:
    def test_a_row_with_an_image_runs_in_it(self, rows: Set) -> None:
        task = rows.task(image="some/image:1")
        assert task["runtime"] == {
            "name": "docker",
            "options": {"image": "some/image:1", "workspace": "/testbed"},
        }
        assert "workspace" not in task
        assert [step["run"] for step in task["prepare"]] == [STRIP]

    def test_runtime_and_image_may_be_named_for_all_rows(self, rows: Set) -> None:
        runtime = {"name": "apptainer", "options": {"network": "none"}}
        image = "x/sweb.eval.x86_64.{docker_id}:latest"
        task = rows.task(table={"runtime": runtime, "image": image, "testbed": "/repo", "strip_history": False})
        options = {"network": "none", "image": "x/sweb.eval.x86_64.local_1776_calc-1:latest", "workspace": "/repo"}
        assert task["runtime"] == {"name": "apptainer", "options": options}
        assert task["prepare"] == []

    def test_images_may_be_left_out(self, rows: Set) -> None:
        assert "workspace" in rows.task(image="some/image", table={"image": "none"})

    def test_a_row_of_swe_smith_begins_with_its_bug(self, rows: Set, tmp_path: Path) -> None:
        bug = GOLD.replace("-    return a // b\n+    return a / b", "-    return a // b\n+    return 0")
        changes = {"image": "", "image_name": "smith/x", "base_commit": "", "patch": bug, "test_patch": ""}
        (step,) = rows.task(**changes)["prepare"]
        repository = tmp_path / "smith"
        make_repository(repository)
        subprocess.run(["sh", "-c", step["run"]], cwd=repository, check=True)
        assert "return 0" in (repository / "calc.py").read_text()
        assert git(repository, "rev-list", "--all", "--count") == "1"
        assert git(repository, "status", "--porcelain") == ""


class TestHistory:
    def test_nothing_leads_to_a_later_commit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        (tmp_path / "home").mkdir()
        base = make_repository(tmp_path / "r")
        repository, name = tmp_path / "r", ("-c", "user.name=a", "-c", "user.email=a@b")
        (repository / "calc.py").write_text("fixed")
        git(repository, *name, "commit", "-qam", "fix")
        fix = git(repository, "rev-parse", "HEAD")
        git(repository, *name, "tag", "-a", "v2", "-m", "v2")
        git(repository, "remote", "add", "origin", "https://example.com/x.git")
        git(repository, "update-ref", "refs/remotes/origin/main", fix)
        git(repository, "reset", "-q", "--hard", base)
        subprocess.run(["sh", "-c", STRIP], cwd=repository, check=True)
        assert git(repository, "rev-parse", "HEAD") == base
        assert git(repository, "for-each-ref") == "" and git(repository, "remote") == ""
        assert subprocess.run(["git", "cat-file", "-e", fix], cwd=repository, check=False).returncode != 0
        assert git(repository, "status", "--porcelain") == ""
        assert git(repository, "checkout", base, "--", "test_calc.py") == ""

    def test_one_commit_is_all_that_is_left(self, tmp_path: Path) -> None:
        before = make_repository(tmp_path / "r")
        subprocess.run(["sh", "-c", ONE_COMMIT], cwd=tmp_path / "r", check=True)
        assert git(tmp_path / "r", "rev-parse", "HEAD") != before


class TestMadeScripts:
    def test_the_command_gets_the_files_of_the_test_patch(self, rows: Set) -> None:
        script = rows.task(eval_script="", test_command="tox --")["evaluator"]["options"]["eval_script"]
        assert "\ntox -- test_calc.py\n" in script

    def test_a_command_may_be_named_for_a_repository(self, rows: Set) -> None:
        table = {"test_commands": {"local/calc": "./run", "*": "no"}, "log_parsers": {"*": "parse_log_django"}}
        options = rows.task(table=table, eval_script="", log_parser="", FAIL_TO_PASS=["test_x (a.b)"])[
            "evaluator"
        ]["options"]
        assert "\n./run test_calc.py\n" in options["eval_script"] and options["log_parser"] == "parse_log_django"

    def test_without_a_test_patch_the_files_of_the_ids_are_tested(self, rows: Set) -> None:
        script = rows.task(eval_script="", test_patch="")["evaluator"]["options"]["eval_script"]
        assert "-m pytest -rA test_calc.py" in script and "git apply" not in script

    def test_the_rows_own_script_comes_first(self, rows: Set) -> None:
        script = rows.task(test_command="tox")["evaluator"]["options"]["eval_script"]
        assert script == eval_script(rows.commit)
