"""What the operator may permit in Apptainer: folders of the node, and the network for prepare steps."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest
from apptainer_bench import sh

from polar.config import PermitConfig
from polar.errors import NotPermitted
from polar.runtimes.apptainer.runtime import ApptainerOptions, ApptainerRuntime
from polar.runtimes.base import Command, SessionFolders

pytestmark = pytest.mark.check


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("content\n")
    return tmp_path / "data"


async def test_a_folder_is_shown_and_cannot_be_written(image: Path, folders: SessionFolders, data: Path) -> None:
    options = ApptainerOptions.model_validate(
        {"image": str(image), "mounts": [{"source": str(data), "target": "/data"}]}
    )
    runtime = ApptainerRuntime(options)
    try:
        await runtime.start(msgspec.structs.replace(folders, permits=PermitConfig(mounts=(data,))))
        shown = await runtime.exec(sh("cat /data/file; (echo x > /data/file) 2>&1"))
        assert shown.stdout_tail.startswith("content\n")
        assert "Read-only file system" in shown.stdout_tail
        assert (data / "file").read_text() == "content\n"
    finally:
        await runtime.stop()


async def test_only_prepare_steps_reach_the_node(image: Path, folders: SessionFolders) -> None:
    runtime = ApptainerRuntime(ApptainerOptions(image=str(image), prepare_network="open"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        connect = Command(argv=("bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"))
        try:
            await runtime.start(msgspec.structs.replace(folders, permits=PermitConfig(prepare_network=True)))
            assert (await runtime.exec(connect)).exit_code == 0
            await runtime.exec(sh("touch /kept kept; sleep 1234.5 & echo"))
            await runtime.prepared()
            assert (await runtime.exec(connect)).exit_code == 1
            assert (await runtime.exec(sh("ls /kept kept"))).exit_code == 0
            gateway = await runtime.listener()
            assert gateway is not None
            gateway.close()
        finally:
            await runtime.stop()


async def test_the_operator_has_to_permit_it(image: Path, folders: SessionFolders) -> None:
    runtime = ApptainerRuntime(ApptainerOptions(image=str(image), prepare_network="open"))
    with pytest.raises(NotPermitted, match=r"permits\.prepare_network is off"):
        await runtime.start(folders)
    await runtime.stop()
