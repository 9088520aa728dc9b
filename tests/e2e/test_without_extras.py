"""`make test` installs no extras such as PyTorch and Ray: what it runs must be importable without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.check

ROOT = Path(__file__).parent.parent.parent
HIDING = """
from importlib.machinery import PathFinder

found, hidden = PathFinder.find_spec, {"torch", "trl", "ray", "matplotlib"}


class Hiding:  # an object, and no function: pytest keeps it in a class, which would make a method of it
    def __call__(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else found(name, path, target)


PathFinder.find_spec = Hiding()
"""
OPTIONS = ("--collect-only", "-m", "not check", "-n", "0", "-p", "no:cacheprovider", "--ignore=tests/e2e/heavy")


def test_what_make_test_runs_needs_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "tests", *OPTIONS),
        cwd=ROOT,
        env={**variables, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "tests/unit/cluster/ray/test_ray_plan.py" in done.stdout
    assert "test_fleet_actor.py" not in done.stdout, "Ray is hidden"
