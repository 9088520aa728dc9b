"""Real images: from the machine's packages, into folders and a real Docker Engine; a cancelled build leaves
nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polar.runtimes.base import Command, SessionFolders
from polar.runtimes.bubblewrap.runtime import BubblewrapRuntime
from polar.runtimes.images.catalog import BaseImage, find
from polar.runtimes.images.engine import engine_images
from skips import skip_without_runtime
from waiting import HANG_S

pytestmark = pytest.mark.check


def polar(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command(), *arguments], capture_output=True, text=True)


def command() -> list[str]:
    return [sys.executable, "-c", "from polar.cli.app import main; main()"]


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an image in a cache of its own; removed afterwards, also from the Docker Engine."""
    if shutil.which("apt-get") is None:
        pytest.skip("images are made on machines with apt")
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    chosen = f"polar-test-{uuid.uuid4().hex[:12]}"
    yield chosen
    polar("image", "rm", chosen)


def test_a_busybox_image_from_nothing_to_gone(name: str, tmp_path: Path) -> None:
    made = polar("image", "build", name, "--kind", "busybox", "--json")
    assert made.returncode == 0, made.stderr
    row: dict[str, Any] = json.loads(made.stdout)
    told = subprocess.run([Path(row["root"], "bin/sh"), "-c", "echo $((6 * 7))"], capture_output=True, text=True)
    assert told.stdout == "42\n"
    assert ("docker" in row["usable_in"]) == asyncio.run(held(name))
    assert polar("image", "rm", name).returncode == 0
    assert not Path(row["root"]).exists() and not asyncio.run(held(name))


async def held(name: str) -> bool:
    async with engine_images() as engine:
        image = find(name)
        return engine is not None and image is not None and await engine.holds(image)


def base_image() -> BaseImage:
    image = find("polar-base")
    if image is None:
        pytest.skip("there is no image polar-base; `make image` builds it")
    return image


def test_the_base_image_is_recorded_and_harmless() -> None:
    """All files belong to the builder, none is setuid, and none names this machine."""
    image = base_image()
    assert {"git", "python3-minimal", "procps", "ca-certificates"} <= image.record.versions.keys()
    for folder, _, files in os.walk(image.root):
        for path in (folder, *(os.path.join(folder, file) for file in files)):
            found = os.lstat(path)
            assert found.st_uid == image.folder.stat().st_uid, path
            assert stat.S_IFMT(found.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK), path
            assert stat.S_ISLNK(found.st_mode) or not found.st_mode & (stat.S_ISUID | stat.S_ISGID), path
    assert (image.root / "etc/hostname").read_text() == "localhost\n"
    assert (image.root / "etc/resolv.conf").read_text() == ""


async def test_programs_of_the_base_image_run_in_it(tmp_path: Path) -> None:
    image = base_image()
    skip_without_runtime("bubblewrap", await BubblewrapRuntime.lacking())
    runtime = BubblewrapRuntime(BubblewrapRuntime.Options.model_validate({"image": image.name}))
    try:
        await runtime.start(SessionFolders("s-image", tmp_path / "root", tmp_path / "logs"))
        script = "git --version && python3 -V && rg --version && ps --version && cat /etc/hostname"
        finished = await runtime.exec(Command(argv=("sh", "-c", script)))
    finally:
        await runtime.stop()
    assert finished.exit_code == 0, finished.stderr_tail
    assert re.search(r"git version .*Python 3.*ripgrep .*procps.*localhost", finished.stdout_tail, re.DOTALL)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_build_that_is_broken_off_half_way_leaves_no_process_and_no_mount(
    sent: signal.Signals, name: str, tmp_path: Path
) -> None:
    """The root is half unpacked, with the machine's folders mounted into it."""
    if shutil.which("mmdebstrap") is None:
        pytest.skip("there is no mmdebstrap; `make image` installs it")
    if sent is signal.SIGKILL and os.geteuid() != 0:
        pytest.skip("only root can see to it that mmdebstrap dies with the build")
    building = subprocess.Popen(
        [*command(), "image", "build", name, "--packages", "procps"], stderr=subprocess.PIPE, text=True
    )
    assert building.stderr is not None
    with building.stderr:
        told = [line for line in iter(building.stderr.readline, "") if not _reached(line, building, sent)]
    assert building.wait() == (130 if sent is signal.SIGINT else -sent), told
    assert name not in Path("/proc/self/mountinfo").read_text()
    deadline = time.monotonic() + HANG_S  # what is killed is not gone at once
    while left_running := [
        words for process in Path("/proc").glob("[0-9]*") if name in (words := _words(process))
    ]:
        assert time.monotonic() < deadline, left_running
        time.sleep(0.05)
    left = [path.name for path in (tmp_path / "cache/images").iterdir() if not path.name.endswith(".lock")]
    assert len(left) == (0 if sent is signal.SIGINT else 1)


def _reached(line: str, building: subprocess.Popen[str], sent: signal.Signals) -> bool:
    reached = "extracting archives" in line
    if reached:
        building.send_signal(sent)
    return reached


def _words(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
