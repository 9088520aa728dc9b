"""The examples of docs/trainers.md for TRL are whole programs: no name comes from nowhere."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[4] / "docs/trainers.md").read_text()
SECTIONS = PAGE.partition("\n## TRL\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"^```python\n(.*?)^```", SECTIONS, re.MULTILINE | re.DOTALL)


def bound(block: ast.Module) -> set[str]:
    """Names that the block imports or defines, wherever it does."""
    found = set(dir(builtins))
    for node in ast.walk(block):
        if isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_both_trainers_have_examples() -> None:
    assert [sum(f" {name}(" in block for block in BLOCKS) for name in ("GRPOTrainer", "AsyncGRPOTrainer")] == [
        1,
        2,
    ]


@pytest.mark.parametrize("source", BLOCKS)
def test_every_name_of_an_example_is_imported_or_defined_there(source: str) -> None:
    block = ast.parse(source)
    used = {node.id for node in ast.walk(block) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert used - bound(block) == set()
