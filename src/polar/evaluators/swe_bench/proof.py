"""Whether a good result can be believed: what the run left beside its log, compared with what the log claims.

Tested code can print whatever a passing test suite prints. No check from within its process is sound; these see
the ways that cost a few lines. docs/swe_bench.md lists the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from polar.evaluators.hardening.judges import Judges
from polar.evaluators.hardening.junit import CaseName, agrees, case_name
from polar.evaluators.hardening.witness import Testimony

SHOWN = 20
SUSPICIOUS = ("os._exit", "_pytest", "/proc/")
"""What a patch rarely needs, and a cheat often."""
WANTED = {"PASSED": {"passed"}, "XFAIL": {"skipped"}, "SKIPPED": {"skipped"}}


def lies_of(seen: Testimony, forged: Iterable[str], work: frozenset[str]) -> list[str]:
    """Why the log cannot be believed at all. `forged`: markers that the evaluator did not write. `work`: paths
    that the agent changed."""
    first = tuple(process for process in seen.processes if process.is_first)  # tests may start and kill others
    printed = [f"tampering: something printed {marker!r}, which only the evaluator does" for marker in forged]
    return printed + Judges(seen.workspace, {}, work).disorder(first)


def unconfirmed(claimed: Mapping[str, str], reports: tuple[dict[CaseName, str], ...]) -> list[str]:
    """Tests that the log claims and no report of pytest has."""
    missing = [
        test_id
        for test_id, status in claimed.items()
        if "::" in test_id and not _is_confirmed(test_id, status, reports)
    ]
    text = "tampering: the log claims {} as {}, and pytest's own report does not"
    return [text.format(test_id, claimed[test_id]) for test_id in missing[:SHOWN]]


def _is_confirmed(test_id: str, status: str, reports: tuple[dict[CaseName, str], ...]) -> bool:
    if agrees(test_id, status.lower(), reports):
        return True
    function, bracket, _ = test_id.partition("[")
    return bool(bracket) and _has_some_case(function, status, reports)


def _has_some_case(function: str, status: str, reports: Iterable[dict[CaseName, str]]) -> bool:
    """Log parsers shorten ids with spaces or paths in their parameters, so any case of the test confirms it."""
    classname, name = case_name(function)
    return any(
        a_name.startswith(f"{name}[")
        and (a_class == classname or a_class.endswith(f".{classname}"))
        and outcome in WANTED.get(status, {outcome})
        for report in reports
        for (a_class, a_name), outcome in report.items()
    )


def suspicions(patch: str) -> list[str]:
    """Words in added lines that somebody should look at. They cost nothing: an honest patch may have them."""
    added = "\n".join(re.findall(r"^\+(?!\+\+ ).*$", patch, re.MULTILINE))
    return [f"look at the patch: it adds {word!r}" for word in SUSPICIOUS if word in added]
