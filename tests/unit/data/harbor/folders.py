"""Harbor task folders for tests: a whole one, and ways to change it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.data.set_items import SetItems

from polar.data.harbor.reader import read_harbor

TOML = """\
schema_version = "1.4"
[metadata]
difficulty = "easy"
[agent]
timeout_sec = 300.0
[verifier]
timeout_sec = 90.0
[environment]
"""
FILES = {
    "instruction.md": "Fix it.\n",
    "task.toml": TOML,
    "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nCOPY app/ /app/\n",
    "environment/app/a.py": "1\n",
    "tests/test.sh": '#!/bin/sh\necho 1 >"${LOGS_DIR:-/logs}/verifier/reward.txt"\n',
    "solution/solve.sh": "#!/bin/sh\necho secret\n",
}


def make_folder(root: Path, name: str = "fix", **changes: str | None) -> Path:
    """Changes: path to text; None leaves the file out."""
    folder = root / "tasks" / name
    for path, text in (FILES | changes).items():
        if text is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    return folder


def read(root: Path, **table: Any) -> SetItems:
    return SetItems.of(read_harbor({"folders": "tasks", **table}, root))


def task(root: Path, **table: Any) -> dict[str, Any]:
    """The only one."""
    ((item,), skipped) = read(root, **table)
    assert skipped == [], skipped
    return item.value


def why_skipped(root: Path, **table: Any) -> str:
    (items, (skipped,)) = read(root, **table)
    assert items == []
    return skipped.why
