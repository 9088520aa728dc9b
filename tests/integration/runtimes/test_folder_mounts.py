"""Folders of the node, mounted read-only in real sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bubblewrap_bench import sh
from docker_machine import StartDocker

from polar.config import PermitConfig
from polar.errors import NotPermitted
from polar.runtimes.base import SessionFolders
from polar.runtimes.bubblewrap.runtime import BubblewrapOptions, BubblewrapRuntime

pytestmark = pytest.mark.check
SCRIPT = sh("cat /data/file; (echo x > /data/file) 2>&1 || true; (rm -rf /data/file) 2>&1 || true; ls /data")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "permitted" / "set").mkdir(parents=True)
    (tmp_path / "permitted" / "set" / "file").write_text("content\n")
    (tmp_path / "permitted" / "set" / "file").chmod(0o666)
    (tmp_path / "permitted" / "set").chmod(0o777)
    return tmp_path / "permitted" / "set"


@pytest.fixture
async def starting(bubblewrap: None, data: Path, tmp_path: Path) -> AsyncIterator[BubblewrapRuntime]:
    runtime = BubblewrapRuntime(BubblewrapOptions.model_validate({"mounts": [_mount(data)]}))
    yield runtime
    await runtime.stop()


def _mount(data: Path) -> dict[str, str]:
    return {"source": str(data), "target": "/data"}


async def test_bubblewrap_shows_a_folder_that_cannot_be_written(
    starting: BubblewrapRuntime, data: Path, tmp_path: Path
) -> None:
    permits = PermitConfig(mounts=(data.parent,))
    await starting.start(SessionFolders("s-1", tmp_path / "root", tmp_path / "logs", permits=permits))
    shown = (await starting.exec(SCRIPT)).stdout_tail
    assert shown.startswith("content\n")
    assert shown.count("Read-only file system") == 2
    assert (data / "file").read_text() == "content\n"


async def test_a_mount_that_is_not_permitted_starts_nothing(starting: BubblewrapRuntime, tmp_path: Path) -> None:
    with pytest.raises(NotPermitted, match=r"permits\.mounts"):
        await starting.start(SessionFolders("s-1", tmp_path / "root", tmp_path / "logs"))
    assert not (tmp_path / "root").exists()


async def test_docker_shows_a_folder_that_cannot_be_written(start_docker: StartDocker, data: Path) -> None:
    permits = PermitConfig(mounts=(data.parent,))
    runtime = await start_docker(mounts=[_mount(data)], permits=permits)
    shown = (await runtime.exec(SCRIPT)).stdout_tail
    assert shown.startswith("content\n")
    assert shown.count("Read-only file system") == 2
    assert (data / "file").read_text() == "content\n"


async def test_docker_refuses_a_link_out_of_the_permitted_folder(start_docker: StartDocker, data: Path) -> None:
    (data / "link").symlink_to("/etc")
    with pytest.raises(NotPermitted, match=r"link \(it is /etc\) is in no folder"):
        await start_docker(mounts=[_mount(data / "link")], permits=PermitConfig(mounts=(data,)))
