"""The package as a user has it: built as sdist and wheel, installed into an environment that knows no checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS: list[str] = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
"""Those that the package claims."""
SCRIPTED_TASKS = """
[[tasks]]
task_id = "hello"
instruction = "Say hello."
harness = { name = "shell", options = { command = "python3 agent.py" } }
files = { "agent.py" = '''%s''' }
"""
OURS = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")


def clean_environment() -> dict[str, str]:
    """Without what leads to the checkout or to the environment of these tests."""
    kept = {name: value for name, value in os.environ.items() if name not in OURS}
    return {**kept, "UV_PYTHON_DOWNLOADS": "never"}


def uv() -> str:
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert found, "the extra `dev` brings uv"
    return found


def run(*command: str | Path, folder: Path) -> str:
    """What it printed. `folder` is where it runs: never the checkout."""
    done = subprocess.run(
        command, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def build(folder: Path) -> Path:
    """The wheel, made from the sdist and not from the checkout: so both are whole."""
    run(uv(), "build", "--quiet", "--out-dir", folder, ROOT, folder=folder)
    (wheel,) = folder.glob("*.whl")
    assert list(folder.glob("*.tar.gz"))
    return wheel


def pythons() -> dict[str, str]:
    """The claimed versions that this machine has, and their interpreters: on the PATH, or kept by pyenv."""
    found: dict[str, str] = {}
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in VERSIONS:
        candidates = (version, *map(str, kept.glob(f"{version}.*/bin/python{version}")))
        answers = (_found(candidate) for candidate in candidates)
        if interpreter := next(filter(None, answers), ""):
            found[version] = interpreter
    return found


def _found(candidate: str) -> str:
    command = (uv(), "python", "find", "--no-project", candidate)
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
