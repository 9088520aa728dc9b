"""What the harness loops have in common, and a table of how each harness fared at the end of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from harness_loop import Outcome

ROWS = pytest.StashKey[list[str]]()
HEAD = "| harness | options | calls | merge rate | breaks | matched in spite of | prompt tokens | seconds |"


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str, dict[str, Any], Outcome], None]:
    """Notes how a harness fared."""
    rows = request.config.stash.setdefault(ROWS, [])

    def note(harness: str, options: dict[str, Any], outcome: Outcome) -> None:
        calls, statistics = outcome.calls, outcome.result.statistics
        cells = [
            harness,
            " ".join(f"{name}={value}" for name, value in options.items()),
            counted(outcome.kinds),
            "-" if statistics.merge_rate is None else f"{statistics.merge_rate:.2f}",
            counted([call.break_reason for call in calls if call.break_reason]) or "none",
            counted([reason for call in calls for reason in call.tolerant]) or "nothing",
            str(max((call.prompt_tokens for call in calls), default=0)),
            f"{outcome.result.stage_s.get('RUNNING', 0.0):.1f}",
        ]
        rows.append("| " + " | ".join(cells) + " |")

    return note


def counted(words: list[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(Counter(words).items()))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = config.stash.get(ROWS, [])
    if rows:
        terminalreporter.write_line("\n".join(["", HEAD, "|" + "---|" * (HEAD.count("|") - 1), *rows]))
