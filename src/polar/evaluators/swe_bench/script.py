"""The row's eval script as it runs: its parts write to files of their own, and it exits with the tests' exit code.

An eval script prints one log, in which a marker line begins the tests' output and another ends it. Tested code can
print markers, too. So the markers become redirections: what the tests print arrives in a file of its own, and the
node puts the log together. The exit code that the log claims comes from the script's process.
"""

from __future__ import annotations

import re

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
EXIT_CODE = ">>>>> Test Exit Code"
FORGEABLE = (START, END, EXIT_CODE)
PYTEST = re.compile(r"\b(pytest|py\.test)\b")

BEGIN = """exec 8>&1 9>&2
exec >"$POLAR_PARTS/setup" 2>&1
"""
TO_TESTS = 'exec >"$POLAR_PARTS/tests" 2>&1'
TO_REST = 'polar_exit_code=$?; exec >"$POLAR_PARTS/rest" 2>&1'
FINISH = 'exit "${polar_exit_code:-1}"'


def check_markers(script: str) -> str:
    """Raises ValueError unless each marker is on exactly one line, the start first."""
    lines = script.splitlines()
    starts = [number for number, line in enumerate(lines) if START in line]
    ends = [number for number, line in enumerate(lines) if END in line]
    if len(starts) != 1 or len(ends) != 1 or starts[0] >= ends[0]:
        raise ValueError(f"eval_script needs one line with {START!r}, and after it one with {END!r}")
    return script
