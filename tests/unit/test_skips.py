"""What CI lets a test skip, and what the last line of a run says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
CONFTEST = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from skips import Skips, leave_out

def pytest_ignore_collect(collection_path, config):
    if collection_path.name == "test_other.py":
        leave_out(config, collection_path, "verl")
        return True

def pytest_configure(config):
    config.addinivalue_line("markers", "check: long")
    config.pluginmanager.register(Skips(config))
"""
SUITE = """
import pytest
from skips import kernel_cannot, needs_kernel

def test_passes(): ...
def test_lacks_a_program(): pytest.skip("there is no bwrap")
def test_lacks_a_system_call(): kernel_cannot("no user namespaces")
@needs_kernel("no cgroups")
def test_lacks_cgroups(): ...
@needs_kernel("")
def test_lacks_nothing(): ...
@pytest.mark.check
def test_is_long(): ...
@pytest.mark.check
def test_is_long_too(): ...
"""


def run(folder: Path, *flags: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    env |= {"CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # some of them take seconds to load
    command = [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-p", "no:cacheprovider", *flags]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "parallel"])
def test_the_last_line_says_what_was_not_run_and_what_runs_it(tmp_path: Path, workers: tuple[str, ...]) -> None:
    done = run(tmp_path, "-m", "not check", *workers)
    assert done.returncode == 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Not run: 2 tests that are long or need containers, PostgreSQL or six harnesses; ")
    assert "1 skipped (there is no bwrap)" in last and "1 skipped (the kernel cannot: no cgroups)" in last
    assert last.endswith("`make check` runs them all.")


def test_in_ci_only_the_kernel_is_a_reason(tmp_path: Path) -> None:
    done = run(tmp_path, ci="true")
    assert done.returncode == 1
    assert "1 failed, 4 passed, 2 skipped" in done.stdout
    assert "skipped in CI: there is no bwrap" in done.stdout


def test_where_all_was_run_it_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, "-k", "passes")
    assert done.stdout.splitlines()[-1] == "Every test of this selection was run."


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "parallel"])
def test_a_file_that_lacks_its_package_is_named_and_no_failure_in_ci(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    (tmp_path / "test_other.py").write_text("import verl")
    done = run(tmp_path, "-k", "passes", *workers, ci="true")
    assert done.returncode == 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Not run: test_other.py (needs verl). `make trainers` runs those that need")
