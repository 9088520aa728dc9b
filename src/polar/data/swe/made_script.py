"""An eval script for a row that brings none: its test patch, and a test command with the files of that patch.

The `swebench` package knows no commands by repository and version: its rows have an eval script. Rows of other
sets name a command, or their test ids are pytest's.
"""

from __future__ import annotations

import shlex

from polar.data.swe.row import SweRow, files_of
from polar.evaluators.swe_bench.script import END, START

PYTEST = '"$(command -v python || echo python3)" -m pytest -rA'
PARSER = "parse_log_pytest"
NOT_TESTS = (".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
"""Endings of files that a test patch may have beside tests."""
DELIMITER = "POLAR_TEST_PATCH_7f3a91"

# The images of public sets have a conda environment of this name for the repository.
ACTIVATE = """\
if [ -f /opt/miniconda3/bin/activate ]; then
    set +u
    source /opt/miniconda3/bin/activate
    conda activate testbed 2>/dev/null || true
    set -u
fi
"""


def has_pytest_ids(row: SweRow) -> bool:
    return all(".py::" in test_id for test_id in row.FAIL_TO_PASS)


def made_script(row: SweRow, command: str) -> str:
    """Raises ValueError if the row's patch cannot stand in a script."""
    if any(line.strip() == DELIMITER for line in row.test_patch.splitlines()):
        raise ValueError(f"test_patch has the line {DELIMITER}")
    patch = row.test_patch if row.test_patch.endswith("\n") or not row.test_patch else f"{row.test_patch}\n"
    apply = f"git apply -v - <<'{DELIMITER}'\n{patch}{DELIMITER}\n" if patch else ""
    words = " ".join((command, *(shlex.quote(path) for path in tested_files(row))))
    return (
        f'#!/bin/bash\nset -uo pipefail\ncd "$TESTBED"\n{ACTIVATE}'
        f"git config --global --add safe.directory \"$TESTBED\"\n{apply}: '{START}'\n{words}\n: '{END}'\n"
    )


def tested_files(row: SweRow) -> tuple[str, ...]:
    """Of the test patch, or of the test ids if there is none."""
    changed = [path for path in files_of(row.test_patch) if not path.endswith(NOT_TESTS)]
    if changed or not has_pytest_ids(row):
        return tuple(changed)
    return tuple(sorted({test_id.partition("::")[0] for test_id in (*row.FAIL_TO_PASS, *row.PASS_TO_PASS)}))
