"""The wheel on the newest Python that it claims, in an image of a newer Debian that `polar image build` makes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed import SCRIPTED_TASKS, VERSIONS, build
from typer.testing import CliRunner

from polar.cli.app import app
from polar.config import cache_dir
from scripted_project import write_project

IMAGE = "polar-newest-python"
PACKAGES = "ca-certificates,git,libgomp1,procps,python3,python3-venv"
RUN = """
python3 -m venv /venv && /venv/bin/pip install -q --no-index --find-links /wheels 'polar-rollout[embedded]'
export POLAR_CACHE=/cache && mkdir /cache && cp -r /from/weights /cache && cp -r /project /mine && cd /mine
/venv/bin/python -W error -c 'import polar.cli.app, polar.node.wiring, polar.runs.running, polar.server.app'
/venv/bin/polar run tasks.toml
"""


@pytest.fixture
def image() -> Iterator[str]:
    """Debian's testing release, whose Python is newer than that of this machine."""
    built = CliRunner().invoke(
        app, ["image", "build", IMAGE, "--suite", "forky", "--for", "docker", "--packages", PACKAGES]
    )
    assert built.exit_code == 0, built.output
    yield IMAGE
    CliRunner().invoke(app, ["image", "rm", IMAGE])


def test_a_project_runs(image: str, tmp_path: Path) -> None:
    in_image = ("docker", "run", "--rm", "--network=none")
    asked = (*in_image, image, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    version = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    assert version == VERSIONS[-1], "the newest that the package claims"
    for name in ("dist", "wheels", "project"):
        (tmp_path / name).mkdir()
    write_project(tmp_path / "project")
    agent = (tmp_path / "project" / "agent.py").read_text()
    (tmp_path / "project" / "tasks.toml").write_text(SCRIPTED_TASKS % agent)
    wanted = ("--only-binary=:all:", "--python-version", version, "--dest", tmp_path / "wheels")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", *wanted, f"{build(tmp_path / 'dist')}[embedded]")
    subprocess.run(pip, check=True)
    folders = {"wheels": tmp_path / "wheels", "project": tmp_path / "project", "from": cache_dir()}
    mounts = [f"-v{folder}:/{name}:ro" for name, folder in folders.items()]
    ran = subprocess.run(
        (*in_image, *mounts, image, "sh", "-ec", RUN), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0 and "each in exactly one trace" in ran.stdout, ran.stdout + ran.stderr
