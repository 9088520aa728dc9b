"""The Python versions that the package claims: the oldest can read every file, and none is claimed twice."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OLDEST = (3, 11)


def claimed() -> list[tuple[int, int]]:
    versions = re.findall(r"Python :: (\d+)\.(\d+)", "\n".join(PROJECT["classifiers"]))
    return [(int(major), int(minor)) for major, minor in versions]


def test_the_oldest_version_is_the_first_claimed() -> None:
    assert PROJECT["requires-python"] == f">={OLDEST[0]}.{OLDEST[1]}"
    assert claimed() == [(3, minor) for minor in range(11, 11 + len(claimed()))]


def test_the_oldest_version_can_parse_every_file() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=OLDEST)


def test_a_type_checker_may_use_our_annotations() -> None:
    assert (ROOT / "src" / "polar" / "py.typed").is_file() and "Typing :: Typed" in PROJECT["classifiers"]
