"""The line of each field of a TOML file."""

from __future__ import annotations

import pytest

from polar.toml.lines import FieldLines

TEXT = '''# a comment with [tables] and x = 1
runs_dir = "out"

[engine]
name = "vllm"
options = { url = "http://x", key = "[no] = 3" }  # one line

[[tasks]]
instruction = """
num_samples = 3
[fake]
"""
harness.name = "pi"
files = [
  "a", # num_samples = 4
  { b = "c" },
]
num_samples = 5
[tasks.budgets]
run_s = 3

[[tasks]]
"task_id" = 'x'
[tasks.evaluator.options]
command = "true"
'''


@pytest.mark.parametrize(
    ("field", "line"),
    [
        (("runs_dir",), 2),
        (("engine",), 4),
        (("engine", "name"), 5),
        (("engine", "options", "key"), 6),
        (("tasks", 0), 8),
        (("tasks", 0, "instruction"), 9),
        (("tasks", 0, "harness", "name"), 13),
        (("tasks", 0, "num_samples"), 18),
        (("tasks", 0, "budgets", "run_s"), 20),
        (("tasks", 1), 22),
        (("tasks", 1, "task_id"), 23),
        (("tasks", 1, "evaluator", "options", "command"), 25),
        (("tasks", 1, "evaluator", "options", "missing"), 24),
        (("fake",), None),
    ],
)
def test_the_line_of_a_field_or_of_what_holds_it(field: tuple[int | str, ...], line: int | None) -> None:
    assert FieldLines(TEXT).of(field) == line


def test_an_empty_file_has_no_lines() -> None:
    assert FieldLines("").of(("x",)) is None
