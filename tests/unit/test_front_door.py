"""What `import polar` offers: cheap to import, complete, and known to type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import polar
from polar.cli.runs.progress import RunProgress
from polar.types import TaskRequest

HEAVY = {"aiohttp", "msgspec", "numpy", "orjson", "pydantic", "sqlalchemy", "starlette", "tokenizers"}


def test_every_name_is_there_and_documented() -> None:
    for name in polar.__all__:
        value = getattr(polar, name)
        assert name in dir(polar) and (name == "__version__" or value.__doc__), name
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = polar.no_such_name


def test_a_type_checker_sees_each_name_where_it_is_loaded_from() -> None:
    tree = ast.parse(Path(polar.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == polar._MODULE_OF and {*seen, "__version__"} == {*polar.__all__}


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, polar; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "polar" in loaded and HEAVY.isdisjoint(loaded)


def test_the_progress_of_the_command_can_follow_a_run() -> None:
    """`RunProgress` is no subclass of `RunObserver`: it must not import what runs sessions."""
    progress = RunProgress([TaskRequest(task_id="t", instruction="x", num_samples=2)], quiet=True)
    with progress:
        progress.phase("waiting")
        progress.phase("")
    assert progress.results == []
