"""An image as a folder and as a file, and a runtime that leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from apptainer_bench import alive_of, make_image

from polar.runtimes.apptainer.instance import find_program
from polar.runtimes.apptainer.runtime import ApptainerOptions, ApptainerRuntime
from polar.runtimes.base import SessionFolders
from skips import kernel_cannot, skip_without_runtime


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_without_runtime("apptainer", asyncio.run(ApptainerRuntime.lacking()))
    return make_image(tmp_path_factory.mktemp("image") / "root")


@pytest.fixture(scope="session")
def image_file(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as one image file, which programs of the node mount."""
    if missing := [name for name in ("mksquashfs", "squashfuse", "fuse-overlayfs") if shutil.which(name) is None]:
        pytest.skip(f"{missing[0]} is missing: `make apptainer` installs it")
    if not Path("/dev/fuse").exists():
        kernel_cannot("there is no /dev/fuse")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse is closed to this user: `make apptainer` opens it")
    folder = tmp_path_factory.mktemp("image_file")
    program = find_program()
    assert program
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    argv = [program, "--silent", "build", str(folder / "image.sif"), str(image)]
    build = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert build.returncode == 0, build.stderr
    return folder / "image.sif"


@pytest.fixture
def folders(tmp_path: Path) -> SessionFolders:
    return SessionFolders(
        session_id=f"s{os.getpid()}-{tmp_path.name[-12:]}", root=tmp_path / "root", logs=tmp_path / "logs"
    )


@pytest.fixture
def options(image: Path) -> ApptainerOptions:
    return ApptainerOptions(image=str(image), output_cap_bytes=2000, tail_bytes=1000)


@pytest.fixture
async def runtime(folders: SessionFolders, options: ApptainerOptions) -> AsyncIterator[ApptainerRuntime]:
    made = ApptainerRuntime(options)
    try:
        await made.start(folders)
        yield made
    finally:
        await made.stop()
    assert not alive_of(folders)
    assert not folders.root.exists()
