"""Rows in the columns of SWE-bench, and the script that runs a row's tests."""

from __future__ import annotations

import json
import shlex
from typing import Any

from swe_bugs import OWNER, Bug
from swe_git import Patches

END = "END_OF_TEST_PATCH"


def row_of(bug: Bug, commit: str, patches: Patches, python: str) -> dict[str, Any]:
    """`python`: the fallback if the runtime's `python3` has no pytest."""
    return {
        "instance_id": bug.instance_id,
        "repo": f"{OWNER}/{bug.repository.name}",
        "version": bug.repository.version,
        "base_commit": commit,
        "environment_setup_commit": commit,
        "problem_statement": bug.statement,
        "hints_text": "",
        "created_at": bug.created_at,
        "patch": patches.gold,
        "test_patch": patches.tests,
        "FAIL_TO_PASS": json.dumps(bug.fail_to_pass),
        "PASS_TO_PASS": json.dumps(bug.pass_to_pass),
        "image": "none",
        "eval_script": eval_script(bug, commit, patches.tests, python),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }


def eval_script(bug: Bug, commit: str, test_patch: str, python: str) -> str:
    """Restores the tests, adds the hidden ones and runs all, in the workspace or in `$TESTBED`."""
    seen = " ".join(sorted({test_id.partition("::")[0] for test_id in bug.repository.test_ids}))
    return f"""\
#!/bin/bash
set -uxo pipefail
cd "${{TESTBED:-.}}"
python=python3
"$python" -c 'import pytest' 2>/dev/null || python={shlex.quote(python)}
rm -f {bug.test_path}
git checkout {commit} -- tests
git apply -v - <<'{END}'
{test_patch}{END}
: '>>>>> Start Test Output'
"$python" -m pytest -rA -p no:cacheprovider {seen} {bug.test_path}
: '>>>>> End Test Output'
rm -f {bug.test_path}
"""
