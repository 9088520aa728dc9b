"""The slowest test files of one run, or of two beside each other, from pytest's junit reports.

    .venv/bin/python -m pytest tests -n 2 --dist loadfile --junitxml=after.xml
    python scripts/slowest_tests.py after.xml before.xml

Seconds are those of the tests of a file added up, set-up and teardown included. Tests that ran side by side each
count in full, so the sum is more than the run took.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True)
class Report:
    seconds: Counter[str]
    """By file."""
    tests: Counter[str]
    took_s: float


def read(path: Path) -> Report:
    seconds, tests = Counter[str](), Counter[str]()
    root = ElementTree.parse(path).getroot()
    for case in root.iter("testcase"):
        name = file_of(case.get("classname", ""))
        seconds[name] += float(case.get("time", 0))  # pyright: ignore[reportArgumentType]
        tests[name] += 1
    took_s = sum(float(suite.get("time", 0)) for suite in root.iter("testsuite"))
    return Report(seconds, tests, took_s)


def file_of(classname: str) -> str:
    """`tests.unit.test_docs.TestLinks` is of `tests/unit/test_docs.py`."""
    parts = classname.split(".")
    last = max((number for number, part in enumerate(parts) if part.startswith("test_")), default=len(parts) - 1)
    return "/".join(parts[: last + 1]) + ".py"


def table(after: Report, before: Report | None, top: int) -> list[str]:
    reports = [report for report in (before, after) if report is not None]
    names = ["before", "after"] if before else [""]
    head = [part for name in names for part in (f"{name} s".strip(), f"{name} tests".strip())]
    slowest = {name for report in reports for name, _ in report.seconds.most_common(top)}
    ordered = sorted(slowest, key=lambda name: -max(report.seconds[name] for report in reports))[:top]
    rows = [[name, *cells(reports, name)] for name in ordered]
    rows.append(["all", *[part for r in reports for part in (f"{r.seconds.total():.0f}", str(r.tests.total()))]])
    rows.append(["wall clock", *[part for r in reports for part in (f"{r.took_s:.0f}", "")]])
    lines = [["file", *head], ["---"] + ["--:"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def cells(reports: list[Report], name: str) -> list[str]:
    there = [(f"{report.seconds[name]:.1f}", str(report.tests[name])) for report in reports]
    return [part if pair[1] != "0" else "-" for pair in there for part in pair]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("after", type=Path)
    parser.add_argument("before", type=Path, nargs="?")
    parser.add_argument("--top", type=int, default=20)
    given = parser.parse_args()
    lines = table(read(given.after), read(given.before) if given.before else None, given.top)
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
