"""Tasks of examples/swe in each runtime: fixes resolve them, and nothing else does. `make e2e` runs all bugs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from swe_solver import Command, Row, Solver, apply, build_set, inline, one_of_each_repository, verdicts

from polar.data.tasks import read_task_set
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Spec
from pytest_image import spec_with_pytest

pytestmark = pytest.mark.check

RUNTIMES = ("local", "bubblewrap", "docker", "apptainer")


@pytest.fixture
def solver(smollm2: SmolLM2Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Solver:
    monkeypatch.chdir(tmp_path)
    return Solver(smollm2, tmp_path, build_set(tmp_path))


def fix(row: Row) -> str:
    return apply(row["patch"])


def nothing(row: Row) -> str:
    return ":"


def wrong(row: Row) -> str:
    """A change of a file that does have to change."""
    return f"echo '# fixed' >>{changed_file(row)}"


def broken(row: Row) -> str:
    return f"{fix(row)}\nprintf 'import nothing_of_that_name\\n' >>{changed_file(row)}"


def changed_file(row: Row) -> str:
    return next(line[6:] for line in row["patch"].splitlines() if line.startswith("+++ b/"))


PASS_ALL = """\
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.outcome = "passed"
    return report
"""


def pass_all(row: Row) -> str:
    """A plug-in that calls every test passed."""
    return f"cat >>conftest.py <<'END'\n{PASS_ALL}END"


def replace_tests(row: Row) -> str:
    """The hidden tests, empty, and the visible ones, removed."""
    path = next(line[6:] for line in row["test_patch"].splitlines() if line.startswith("+++ b/"))
    return (
        f"rm tests/test_*.py; echo 'def test_all(): pass' >{path}; git add -A; git -c user.name=a commit -qm done"
    )


CLAIM = """\
import os
for number in range(1, 40):
    try:
        os.write(number, {lines!r})
    except OSError:
        pass
os._exit(0)
"""


def claim(row: Row) -> str:
    """Code that prints what a parser looks for, past pytest's capture, and ends the process."""
    ids = [*json.loads(row["FAIL_TO_PASS"]), *json.loads(row["PASS_TO_PASS"])]
    lines = "".join(f"PASSED {test_id}\n" for test_id in ids).encode()
    return f"cat >>{changed_file(row)} <<'END'\n{CLAIM.format(lines=lines)}END"


BAD: dict[Command, str] = {
    nothing: "the patch is empty",
    wrong: "FAIL_TO_PASS did not pass",
    broken: "FAIL_TO_PASS did not pass",
    pass_all: "tampering",
    replace_tests: "the task's own was used",
    claim: "pytest's own report does not",
}
"""What is no fix, and a part of the reason for its 0.0."""


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_fix_resolves_and_nothing_else_does(runtime: str, solver: Solver) -> None:
    """One bug of each repository is fixed; a bug each is treated in a way that is no fix."""
    spec = await spec_with_pytest(runtime)
    fixed = {row["instance_id"]: fix for row in one_of_each_repository(solver.rows)}
    others = [name for name in solver.rows if name not in fixed]
    bad = dict(zip(others[::4], BAD, strict=False))
    assert len(fixed) == 4 and len(bad) == len(BAD)
    seen = verdicts(await solver.solve(fixed | bad, spec))
    assert {name: seen[name] for name in fixed} == dict.fromkeys(fixed, (1.0, ""))
    assert {name: seen[name][0] for name in bad} == dict.fromkeys(bad, 0.0)
    assert {name: seen[name][1] for name, command in bad.items() if BAD[command] not in seen[name][1]} == {}


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_harbor_folder_of_the_set(runtime: str, solver: Solver) -> None:
    good, bad, *_ = (row["instance_id"] for row in one_of_each_repository(solver.rows))
    spec = await spec_with_pytest(runtime)
    path = solver.built / "harbor.toml"
    if runtime == "docker":  # has the folder's own image built
        spec = Spec(name=runtime)
    table = {"folders": "harbor", "names": [good, bad], "runtime": spec.model_dump()}
    lines = ["[harbor]", *(f"{key} = {inline(value)}" for key, value in table.items()), "[defaults]"]
    path.write_text("\n".join([*lines, 'harness = { name = "pi" }']) + "\n")
    read = read_task_set(path)
    assert read.skipped == ()
    seen = verdicts(await solver.run(read.tasks, {good: fix, bad: nothing}))
    assert (seen[good], seen[bad][0]) == ((1.0, ""), 0.0)


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_patch_that_cannot_be_applied_is_a_zero(runtime: str, solver: Solver) -> None:
    """The agent hands in a patch as a file: one is the fix, one is for lines that are not there."""
    good, bad, *_ = solver.rows
    commands: dict[str, Command] = {
        good: lambda row: f"cat >fix.diff <<'END_OF_FIX'\n{row['patch']}END_OF_FIX",
        bad: lambda row: f"cat >fix.diff <<'END_OF_FIX'\n{row['patch'].replace('    ', 'no such ')}END_OF_FIX",
    }
    seen = verdicts(await solver.solve(commands, await spec_with_pytest(runtime), patch_file="fix.diff"))
    assert seen[good][0] == 1.0
    assert seen[bad][0] == 0.0 and "cannot be applied" in seen[bad][1]
