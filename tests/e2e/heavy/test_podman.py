"""Podman in the place of Docker: the same suite, an image, and a harness in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from podman_service import podman_service

REPOSITORY = Path(__file__).resolve().parents[3]
SUITE = REPOSITORY / "tests" / "integration" / "runtimes"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with podman_service() as address:
        yield address


def run(address: str, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DOCKER_HOST": address, "POLAR_TEST_ENGINE": address}
    return subprocess.run([sys.executable, *argv], cwd=REPOSITORY, env=env, capture_output=True, text=True)


def passed(address: str, *arguments: str) -> int:
    """How many tests of a run did; none may fail, none may be left out."""
    ended = run(address, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *arguments)
    told = ended.stdout[-6000:] + ended.stderr[-2000:]
    assert ended.returncode == 0 and "skipped" not in ended.stdout, told
    found = re.search(r"(\d+) passed", ended.stdout)
    assert found is not None, told
    return int(found[1])


def test_the_suite_of_the_docker_runtime_holds(address: str) -> None:
    files = sorted(map(str, SUITE.glob("test_docker_*.py")))
    assert passed(address, *files) > 70


def test_an_image_comes_in_and_goes(address: str) -> None:
    assert passed(address, str(SUITE / "test_image_build.py"), "-k", "busybox") == 1


def test_a_harness_has_its_tool_loop_inside(address: str) -> None:
    polar = ("-c", "from polar.cli.app import main; main()")
    built = run(address, *polar, "image", "build", "--for", "docker")
    assert built.returncode == 0 and address in built.stdout, built.stdout + built.stderr
    assert passed(address, "tests/e2e/test_pi_in_runtimes.py", "-k", "docker") == 1
    assert passed(address, "tests/e2e/test_closed_calls.py", "-k", "docker") == 2
