"""The script that distinguishes what the kernel lacks from what is not installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "kernel-can.sh"


def ask(runtime: str, programs: Path) -> subprocess.CompletedProcess[str]:
    bash = shutil.which("bash")
    assert bash
    return subprocess.run([bash, SCRIPT, runtime], env={"PATH": str(programs)}, capture_output=True, text=True)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A machine whose kernel refuses namespaces."""
    for name in ("id", "grep", "true"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    unshare = tmp_path / "unshare"
    unshare.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2; exit 1\n")
    unshare.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("runtime", ["bubblewrap", "apptainer"])
def test_a_kernel_without_namespaces_is_named(runtime: str, programs: Path) -> None:
    said = ask(runtime, programs)
    assert (said.returncode, said.stdout) == (
        1,
        "no user namespaces: unshare failed: Operation not permitted\n",
    )


def test_where_it_refuses_nothing_it_is_silent(programs: Path) -> None:
    (programs / "unshare").write_text("#!/bin/sh\nexit 0\n")
    for runtime in ("bubblewrap", "apptainer"):
        said = ask(runtime, programs)
        assert (said.returncode, said.stdout) == (0, "")


def test_another_runtime_is_not_known(programs: Path) -> None:
    assert ask("chroot", programs).returncode == 2
