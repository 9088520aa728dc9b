"""Tests run once more by a user without privileges: what a root node can do says nothing about others."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from polar.config import cache_dir

REPOSITORY = Path(__file__).resolve().parent.parent
NAME = "nobody"
TRIAL = "import subprocess, sys, pytest, msgspec, pydantic; subprocess.run([sys.executable, '-V'], check=True)"
ALWAYS = (
    "src",
    "pyproject.toml",
    "scripts",
    *(str(path.relative_to(REPOSITORY)) for path in sorted((REPOSITORY / "tests").glob("*.py"))),
)
LEAVE_OUT = shutil.ignore_patterns("__pycache__")


@dataclass(frozen=True)
class OrdinaryUser:
    """A user with a home that holds a copy of the package and of the tests it is to run."""

    entry: pwd.struct_passwd
    home: Path

    def bring(self, *paths: Path) -> None:
        """Files and folders of the repository, to the same place under the home."""
        for path in paths:
            target = self.home / path.relative_to(REPOSITORY)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, ignore=LEAVE_OUT, dirs_exist_ok=True)
            else:
                shutil.copy(path, target)

    def bring_cached(self, *names: str) -> None:
        """Folders of the cache: what they hold can be read by all, where they are cannot."""
        for name in names:
            for found in sorted(cache_dir().glob(name)):
                target = self.home / "cache" / found.relative_to(cache_dir())
                target.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-a", "--reflink=auto", str(found), str(target)], check=True)
        # What is a user's own he can lay other things over.
        subprocess.run(["chown", "-R", f"{self.entry.pw_uid}:{self.entry.pw_gid}", str(self.home)], check=True)

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run((self.python(), "-m", "pytest", "-rs", "-p", "no:cacheprovider", *arguments))

    def python(self) -> str:
        """One that the user may run, and run again from there, with the packages of this one."""
        release = f"python{sys.version_info.major}.{sys.version_info.minor}"
        tried: list[str] = []
        for path in dict.fromkeys((sys.executable, f"/usr/bin/{release}", f"/usr/local/bin/{release}")):
            if Path(path).exists():
                trial = self.run((path, "-c", TRIAL))
                if trial.returncode == 0:
                    return path
                tried.append(f"{path}: {trial.stderr.strip().rpartition(chr(10))[2]}")
        pytest.skip(f"an ordinary user can run none of these here: {'; '.join(tried)}")

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        ids = (f"--reuid={self.entry.pw_uid}", f"--regid={self.entry.pw_gid}", "--clear-groups")
        packages = [path for path in sys.path if "site-packages" in path]
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "POLAR_CACHE": str(self.home / "cache"),
            "PYTHONPATH": os.pathsep.join([str(self.home / "src"), *packages]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(["setpriv", *ids, *argv], cwd=self.home, env=env, capture_output=True, text=True)


@contextmanager
def ordinary_user() -> Generator[OrdinaryUser]:
    if os.geteuid() != 0:
        pytest.skip("nothing to add: these tests are run by an ordinary user already")
    user = OrdinaryUser(pwd.getpwnam(NAME), Path("/var/tmp") / f"polar-user-{os.getpid()}")
    user.home.mkdir(mode=0o755)
    os.chown(user.home, user.entry.pw_uid, user.entry.pw_gid)
    try:
        user.bring(*(REPOSITORY / name for name in ALWAYS))
        yield user
    finally:
        shutil.rmtree(user.home)
