"""From a row to a task. What the agent sees of it has nothing of the gold patch and the tests."""

from __future__ import annotations

import re
from typing import Any

from polar.data.swe.made_script import PARSER, PYTEST, has_pytest_ids, made_script
from polar.data.swe.row import SweRow, files_of
from polar.data.swe.sources import Repositories
from polar.data.swe.table import PLACEHOLDERS, SweTable
from polar.types import Spec

TIME_BESIDE_TESTS_S = 300.0
"""For copies of the workspace, grading and building traces."""
STRIP_TIMEOUT_S = 600.0
BUG_DELIMITER = "POLAR_BUG_PATCH_5c20d4"

# HEAD stays; everything that leads to a later commit goes, then the objects that nothing leads to.
STRIP = r"""
git config --global --add safe.directory "$PWD"
for name in $(git remote); do git remote remove "$name"; done
head=$(git rev-parse HEAD)
git checkout --quiet --detach "$head" || exit 1
git for-each-ref --format='delete %(refname)' | git update-ref --stdin || exit 1
rm -rf .git/logs .git/FETCH_HEAD .git/ORIG_HEAD .git/MERGE_HEAD .git/packed-refs .git/worktrees
git reflog expire --expire=now --all
git repack -a -d --quiet && git prune --expire=now
"""

# A later commit is no problem here, but an earlier one is: it has no bug.
ONE_COMMIT = r"""
rm -rf .git && git init --quiet && git add --all || exit 1
git -c user.name=polar -c user.email=polar@example.com commit --quiet --message "initial state"
"""


class SweTasks:
    def __init__(self, options: SweTable, repositories: Repositories) -> None:
        self._options = options
        self._repositories = repositories

    def task_of(self, row: SweRow) -> dict[str, Any]:
        """Raises ValueError if the row cannot become a task."""
        if not row.problem_statement.strip():
            raise ValueError("problem_statement: empty")
        names = {name: getattr(row, name) for name in ("instance_id", "repo", "version", "base_commit")}
        values = {name: getattr(row, name) for name in PLACEHOLDERS}
        return {
            "task_id": re.sub(r"[^A-Za-z0-9._-]", "-", row.instance_id)[:128],
            "instruction": self._options.instruction.format_map(values),
            "evaluator": {"name": "swe_bench", "options": self._evaluator(row)},
            "budgets": {"postrun_s": self._options.timeout_s + TIME_BESIDE_TESTS_S},
            "metadata": names,
            **self._place(row),
        }

    def _evaluator(self, row: SweRow) -> dict[str, Any]:
        script = row.eval_script or made_script(row, self._command(row))
        return {
            "instance_id": row.instance_id,
            "repo": row.repo,
            "version": row.version,
            "fail_to_pass": list(row.FAIL_TO_PASS),
            "pass_to_pass": list(row.PASS_TO_PASS),
            "eval_script": script,
            "log_parser": self._parser(row),
            "eval_type": row.eval_type,
            "test_files": list(files_of(row.test_patch)),
            "gold_files": list(files_of(row.patch)),
            "timeout_s": self._options.timeout_s,
            **self._options.evaluator,
        }

    def _command(self, row: SweRow) -> str:
        named = self._options.test_commands
        command = row.test_command or named.get(row.repo) or named.get("*")
        if not command and not has_pytest_ids(row):
            raise ValueError(
                f"it has no eval_script, and its test ids are not pytest's: name a command for {row.repo!r} in"
                " test_commands"
            )
        return command or PYTEST

    def _parser(self, row: SweRow) -> str:
        named = self._options.log_parsers
        parser = row.log_parser or named.get(row.repo) or named.get("*")
        if not parser and not has_pytest_ids(row):
            raise ValueError(f"it has no log_parser: name one for {row.repo!r} in log_parsers")
        return parser or PARSER

    def _place(self, row: SweRow) -> dict[str, Any]:
        image = self._options.image_of(row)
        if not image:
            return {"workspace": {"git": str(self._repositories.source_of(row)), "ref": row.base_commit}}
        given = self._options.runtime or Spec(name="docker")
        runtime = {
            "name": given.name,
            "options": {**given.options, "image": image, "workspace": self._options.testbed},
        }
        return {"runtime": runtime, "prepare": self._steps(row)}

    def _steps(self, row: SweRow) -> list[dict[str, Any]]:
        if row.has_bug_patch:
            apply = f"git apply --whitespace=nowarn - <<'{BUG_DELIMITER}'\n{row.patch.rstrip()}\n{BUG_DELIMITER}\n"
            return [{"run": f"{apply}[ $? = 0 ] || exit 1{ONE_COMMIT}", "timeout_s": STRIP_TIMEOUT_S}]
        return [{"run": STRIP, "timeout_s": STRIP_TIMEOUT_S}] if self._options.strip_history else []
