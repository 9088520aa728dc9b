"""What `pip install polar-rollout[embedded]` and `uvx` give: commands that work in an empty folder.

`uvx` runs on each claimed Python that the machine has; at least on that of these tests.
"""

from __future__ import annotations

import json
import platform
import sys
import zipfile
from pathlib import Path

import pytest
from installed import ROOT, SCRIPTED_TASKS, build, pythons, run, uv

from scripted_project import write_project

pytestmark = pytest.mark.check

PYTHONS = pythons()
USER_CODE = """
import polar
from polar.evaluators.base import Evidence
from polar.types import Score


def grade(evidence: Evidence, limit: int = 3) -> Score:
    return Score(reward=float(len(evidence.answer) < limit))


def train() -> None:
    for row in polar.run("tasks.toml", samples=4).rows():
        print(row)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel, its extra `embedded` and their dependencies alone."""
    folder = tmp_path_factory.mktemp("user")
    run(uv(), "venv", "--quiet", "--python", sys.executable, folder / "venv", folder=folder)
    python = folder / "venv" / "bin" / "python"
    run(uv(), "pip", "install", "--quiet", "--python", python, f"{wheel}[embedded]", folder=folder)
    return python.parent


def test_the_wheel_holds_what_the_commands_need(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    data = [name for name in names if name.startswith("polar/") and not name.endswith(".py")]
    assert {"polar/py.typed", "polar/cli/project/demo.toml", "polar/cli/project/scaffold/tasks.toml"} <= {*data}
    assert not [name for name in names if not name.startswith(("polar/", "polar_rollout-"))]


def test_a_new_project_runs_at_once(environment: Path, tmp_path: Path) -> None:
    """The real agent and the real model."""
    polar = environment / "polar"
    assert "Next: cd project" in run(polar, "init", "project", folder=tmp_path)
    project = tmp_path / "project"
    ran = json.loads(run(polar, "run", "tasks.toml", "--samples", "1", "--json", folder=project))
    assert {result["task_id"] for result in ran["results"]} == {"greet", "folder"}
    assert {result["stage"] for result in ran["results"]} == {"COMPLETED"}
    assert all(result["score"]["reward"] is not None for result in ran["results"]), (
        "the project's own grader judged"
    )


def test_the_package_is_not_the_checkout(environment: Path, tmp_path: Path) -> None:
    where = run(environment / "python", "-P", "-c", "import polar; print(polar.__file__)", folder=tmp_path)
    assert not Path(where.strip()).is_relative_to(ROOT)


def test_a_type_checker_reads_the_types_of_the_wheel(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(USER_CODE)
    (tmp_path / "wrong.py").write_text(USER_CODE.replace("samples=4", "samples='four'"))
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    pyright = Path(sys.executable).parent / "pyright"
    interpreter = ("--pythonpath", str(environment / "python"))
    assert "0 errors" in run(pyright, *interpreter, "good.py", folder=tmp_path)
    with pytest.raises(AssertionError, match="reportArgumentType"):
        run(pyright, *interpreter, "wrong.py", folder=tmp_path)


def test_this_python_is_among_those_that_are_tried() -> None:
    assert ".".join(platform.python_version_tuple()[:2]) in PYTHONS


@pytest.mark.parametrize("version", PYTHONS)
def test_uvx_runs_a_project_on_each_python(version: str, wheel: Path, tmp_path: Path) -> None:
    """With modules of the project itself: its engine is one."""
    write_project(tmp_path)
    (tmp_path / "tasks.toml").write_text(SCRIPTED_TASKS % (tmp_path / "agent.py").read_text())
    uvx = (uv(), "tool", "run", "--quiet", "--python", PYTHONS[version], "--from", f"{wheel}[embedded]", "polar")
    ran = json.loads(run(*uvx, "run", "tasks.toml", "--json", folder=tmp_path))
    assert [result["stage"] for result in ran["results"]] == ["COMPLETED"]
    assert ran["results"][0]["statistics"]["trainable_tokens"] > 0
