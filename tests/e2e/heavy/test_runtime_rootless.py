"""Harnesses in rootless containers: the matrix once more, by a user without privileges."""

from __future__ import annotations

import pytest
from runtime_loop import need

from ordinary_user import REPOSITORY, ordinary_user

PACKAGES = ("npm/node-*", "npm/*pi-coding-agent*", "npm/*codex*", "weights", "images/polar-base")


@pytest.mark.parametrize("runtime", ["apptainer", "bubblewrap"])
async def test_an_ordinary_user_runs_harnesses_in_containers(runtime: str) -> None:
    await need(runtime)
    with ordinary_user() as user:
        user.bring(REPOSITORY / "tests" / "e2e")
        user.bring_cached(*PACKAGES)
        chosen = f"{runtime} and (pi or codex)"
        run = user.pytest("tests/e2e/heavy/test_runtime_matrix.py", "-k", chosen)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert "2 passed, " in run.stdout and "skipped" not in run.stdout, run.stdout
