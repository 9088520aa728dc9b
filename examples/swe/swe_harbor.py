"""Folders in the format of Harbor: instruction, image, tests and solution of a bug."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from swe_bugs import Bug
from swe_git import write_checkout

WORKSPACE = "/app"


def write_folder(bug: Bug, row: dict[str, Any], folder: Path, image: str, python: str) -> None:
    """`image`: the Dockerfile's base, with git, bash, python3 and pytest. `python`: the fallback if the runtime's
    `python3` has no pytest."""
    texts = {
        "instruction.md": f"{bug.statement}\nThe folder you are in is the repository. Resolve this issue.\n",
        "task.toml": _task(bug),
        "environment/Dockerfile": _dockerfile(image),
        "tests/test.sh": _test(bug, python),
        f"tests/hidden/{bug.test_path}": bug.tests,
        "solution/solve.sh": _solution(row["patch"]),
    }
    seen = {path: text for path, text in bug.repository.files.items() if path.startswith("tests/")}
    texts |= {f"tests/hidden/{path}": text for path, text in seen.items()}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    write_checkout(bug, folder / "environment" / "repository")


def _task(bug: Bug) -> str:
    return f"""\
schema_version = "1.4"

[task]
name = {json.dumps(bug.instance_id.replace("__", "/"))}
version = {json.dumps(bug.repository.version)}
description = {json.dumps(bug.statement.partition(chr(10))[0])}

[metadata]
category = "software-engineering"
repository = {json.dumps(bug.repository.name)}
kind = {json.dumps(bug.kind)}

[agent]
timeout_sec = 900.0

[verifier]
timeout_sec = 120.0

[environment]
cpus = 1
memory_mb = 1024
storage_mb = 1024
"""


def _dockerfile(image: str) -> str:
    return f"FROM {image}\nCOPY repository {WORKSPACE}\nWORKDIR {WORKSPACE}\n"


def _test(bug: Bug, python: str) -> str:
    ids = " \\\n    ".join([*bug.fail_to_pass, *bug.pass_to_pass])
    return f"""\
#!/bin/bash
# Puts the tests in place, the hidden ones included, and runs each that has to pass.
logs=${{LOGS_DIR:-/logs}}/verifier
mkdir -p "$logs"
rm -f "$logs/reward.txt" "$logs/reward.json"
rm -rf tests && cp -r "${{TESTS_DIR:-/tests}}/hidden/tests" tests
python=python3
"$python" -c 'import pytest' 2>/dev/null || python={shlex.quote(python)}
"$python" -c 'import pytest' || exit 1  # no reward at all: that is not the agent's fault
"$python" -m pytest -rA -p no:cacheprovider \\
    {ids}
if [ $? -eq 0 ]; then reward=1; else reward=0; fi
echo $reward >"$logs/reward.txt"
"""


def _solution(gold: str) -> str:
    return f"""\
#!/bin/bash
set -e
git apply - <<'END_OF_PATCH'
{gold}END_OF_PATCH
"""
