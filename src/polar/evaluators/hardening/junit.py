"""JUnit reports, as pytest writes them at its very end: a process that ended before has none.

The tested code runs in the same process, so the file is read as one that it may have written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

CaseName = tuple[str, str]
"""Class name and test name of a test case."""

MAX_REPORT_BYTES = 64 * 2**20
ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot have; pytest writes their number instead."""


def junit_outcomes(path: Path) -> dict[CaseName, str]:
    """Outcome of each case: passed, failed, error or skipped. Of several the worst counts. Empty: no report."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_REPORT_BYTES:
        return {}
    content = path.read_bytes()
    if b"<!" in content[:1000]:  # a document type, with entities to expand
        return {}
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError:
        return {}
    found: dict[CaseName, str] = {}
    for case in root.iter("testcase"):
        name = (case.get("classname", ""), case.get("name", ""))
        outcome = next((tag for tag in ("error", "failure", "skipped") if case.find(tag) is not None), "passed")
        if found.get(name, "passed") == "passed":
            found[name] = "failed" if outcome == "failure" else outcome
    return found


def agrees(test_id: str, outcome: str, reports: Iterable[dict[CaseName, str]]) -> bool:
    """Whether the reports have this test, and no other outcome than pytest's summary says. Only of `passed` and
    `skipped` is the outcome compared: an error and a failure are both told in more than one way."""
    classname, name = case_name(test_id)
    seen = {
        outcome
        for report in reports
        for (a_class, a_name), outcome in report.items()
        if a_name == name and (a_class == classname or a_class.endswith(f".{classname}"))
    }
    wanted = {"passed": {"passed"}, "xpass": {"passed"}, "skipped": {"skipped"}, "xfail": {"skipped"}}
    return bool(seen) and seen <= wanted.get(outcome, seen)


def case_name(test_id: str) -> CaseName:
    """The names under which pytest reports a test id. It prints ids relative to its working folder and reports
    them relative to its root, so a class name may begin with more folders."""
    path, bracket, parameters = test_id.partition("[")
    first, *names = path.split("::")
    module = first.removesuffix(".py").replace("/", ".").lstrip(".")
    *classes, name = [module, *names]
    return ".".join(classes), ILLEGAL.sub(_number, name + bracket + parameters)


def _number(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"#x{code:02X}" if code <= 0xFF else f"#x{code:04X}"
