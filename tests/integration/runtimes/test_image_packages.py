"""An image with Debian and Python packages, from one command, in every runtime that uses images."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polar import registry
from polar.runtimes.base import Command, Runtime, SessionFolders
from polar.types import Spec
from skips import skip_without_runtime

pytestmark = pytest.mark.check
SCRIPT = "python3 -c 'import numpy, requests; print(numpy.arange(4).sum(), requests.__name__)'; rg --version"


def polar(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", "from polar.cli.app import main; main()", *arguments]
    return subprocess.run(argv, capture_output=True, text=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is missing: `make image` installs it")
    name = f"polar-test-{uuid.uuid4().hex[:12]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLAR_CACHE", str(tmp_path_factory.mktemp("cache")))
        packages = ("--packages", "procps", "--apt", "ripgrep", "--pip", "requests", "--pip", "numpy")
        made = polar("image", "build", name, *packages, "--json")
        assert made.returncode == 0, made.stderr
        yield json.loads(made.stdout)
        polar("image", "rm", name)


def test_its_packages_are_recorded(built: dict[str, Any]) -> None:
    assert built["pip"] == ["numpy", "requests"]
    record = json.loads((Path(built["root"]).parent / "image.json").read_text())
    assert {"pip:numpy", "pip:requests", "ripgrep"} <= record["versions"].keys()
    assert not (Path(built["root"]) / "tmp/polar-wheels").exists()


@pytest.mark.parametrize("name", ["apptainer", "bubblewrap", "docker"])
async def test_an_agent_finds_them(built: dict[str, Any], name: str, tmp_path: Path) -> None:
    skip_without_runtime(name, await registry.find("runtime", name).lacking())
    runtime: Runtime = registry.make("runtime", Spec(name=name, options={"image": built["image"]}))
    try:
        await runtime.start(SessionFolders(f"s-{uuid.uuid4().hex}", tmp_path / "root", tmp_path / "logs"))
        finished = await runtime.exec(Command(("sh", "-c", SCRIPT)))
        assert finished.stdout_tail.splitlines()[0] == "6 requests", finished.stderr_tail
        assert finished.stdout_tail.splitlines()[1].startswith("ripgrep ")
    finally:
        await runtime.stop()
