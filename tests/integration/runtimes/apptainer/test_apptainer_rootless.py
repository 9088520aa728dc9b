"""An ordinary user needs nothing more: the other tests of this folder, run by one."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[3]
TRIAL = "import subprocess, sys, pytest, msgspec, pydantic; subprocess.run([sys.executable, '-V'], check=True)"
NAMES = ("port", "containment", "sweep")


def as_user(user: pwd.struct_passwd, home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home),
        "POLAR_CACHE": str(home / "cache"),
        "PYTHONPATH": os.pathsep.join(
            [str(home / "src"), *(path for path in sys.path if "site-packages" in path)]
        ),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(["setpriv", *ids, *argv], cwd=home, env=env, capture_output=True, text=True)


def python_for(user: pwd.struct_passwd, home: Path) -> str:
    """A Python that the user may run, and run again from there, with the packages of this one."""
    release = f"python{sys.version_info.major}.{sys.version_info.minor}"
    tried: list[str] = []
    for path in dict.fromkeys((sys.executable, f"/usr/bin/{release}", f"/usr/local/bin/{release}")):
        if Path(path).exists():
            trial = as_user(user, home, path, "-c", TRIAL)
            if trial.returncode == 0:
                return path
            tried.append(f"{path}: {trial.stderr.strip().rpartition(chr(10))[2]}")
    pytest.skip(f"an ordinary user can run none of these here: {'; '.join(tried)}")


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("image")
def test_an_ordinary_user_can_do_all_of_it() -> None:
    if os.geteuid() != 0:
        pytest.skip("nothing to add: the other tests of this folder are run by an ordinary user already")
    user = pwd.getpwnam("nobody")
    home = Path("/var/tmp") / f"polar-rootless-{os.getpid()}"
    home.mkdir(mode=0o755)
    try:
        shutil.copytree(REPOSITORY / "src", home / "src", ignore=shutil.ignore_patterns("__pycache__"))
        target = home / HERE.relative_to(REPOSITORY)
        shutil.copytree(HERE, target, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPOSITORY / "pyproject.toml", home)
        os.chown(home, user.pw_uid, user.pw_gid)
        files = [str(target / f"test_apptainer_{name}.py") for name in NAMES]
        python = python_for(user, home)
        run = as_user(user, home, python, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *files)
    finally:
        shutil.rmtree(home)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
