"""Outcomes of single tests from the output of `pytest -rA`.

Test ids are never normalised: an outcome is looked up by the exact id, so two tests cannot be confused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Literal

Outcome = Literal["passed", "failed", "error", "skipped", "xfail", "xpass"]

_LINE = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (.+?)\s*$", re.MULTILINE)
_HEADER = re.compile(r"^=+ short test summary info =+\s*$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def outcomes_of(output: str, expected_ids: Collection[str]) -> dict[str, str]:
    """Outcome of each expected test that was reported. A test that passed and then failed in its teardown is
    reported twice; the failure counts."""
    seen: dict[str, str] = {}
    for match in _LINE.finditer(_summary(_COLOUR.sub("", output))):
        test_id = next((name for name in _readings(match[2]) if name in expected_ids), None)
        if test_id is not None and seen.get(test_id, "passed") == "passed":
            seen[test_id] = match[1].lower()
    return seen


def _summary(output: str) -> str:
    """The text after the last summary header, because the tests' own output is above it. Without a header, all of
    it."""
    *_, summary = _HEADER.split(output)
    return summary


def _readings(entry: str) -> Iterator[str]:
    """Possible ids in `id - message`, longest first: both ids and messages may contain the separator."""
    while entry:
        yield entry
        entry = entry.rpartition(" - ")[0]
