"""Folders in the format of Harbor: instruction, image, tests and solution of a bug."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from swe_bugs import Bug
from swe_git import git_of, write_bundle

WORKSPACE = "/app"


def write_folder(bug: Bug, row: dict[str, Any], folder: Path, image: str) -> None:
    """`image`: what the Dockerfile begins with; it has git, bash, python3 and pytest."""
    texts = {
        "instruction.md": f"{bug.statement}\nThe repository is in {WORKSPACE}. Fix this there.\n",
        "task.toml": _task(bug),
        "environment/Dockerfile": _dockerfile(image),
        "tests/test.sh": _test(bug),
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
    with git_of({"main": bug}) as repository:
        write_bundle(repository, folder / "environment" / "repository.bundle", "HEAD", "main")


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
    return f"""\
FROM {image}
COPY repository.bundle /tmp/repository.bundle
RUN git clone --quiet /tmp/repository.bundle {WORKSPACE} \\
    && git -C {WORKSPACE} remote remove origin \\
    && rm /tmp/repository.bundle
WORKDIR {WORKSPACE}
"""


def _test(bug: Bug) -> str:
    ids = " \\\n    ".join([*bug.fail_to_pass, *bug.pass_to_pass])
    return f"""\
#!/bin/bash
# Puts the tests in place, the hidden ones included, and runs each that has to pass.
mkdir -p /logs/verifier
rm -f /logs/verifier/reward.txt /logs/verifier/reward.json
cd {WORKSPACE} && rm -rf tests && cp -r /tests/hidden/tests tests
python3 -m pytest -rA -p no:cacheprovider \\
    {ids}
if [ $? -eq 0 ]; then reward=1; else reward=0; fi
echo $reward >/logs/verifier/reward.txt
"""


def _solution(gold: str) -> str:
    return f"""\
#!/bin/bash
set -e
cd {WORKSPACE}
git apply - <<'END_OF_PATCH'
{gold}END_OF_PATCH
"""
