"""An image of a registry on loopback, pulled for Apptainer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from apptainer_bench import sh
from loopback_registry import LoopbackRegistry

from polar.config import PermitConfig
from polar.errors import RuntimeFailure
from polar.runtimes.apptainer.runtime import ApptainerOptions, ApptainerRuntime
from polar.runtimes.base import SessionFolders

pytestmark = pytest.mark.check
MISSING = PermitConfig(pull="missing")


@pytest.fixture(autouse=True)
def own_cache(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`image`: only where Apptainer works."""
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))


async def test_it_is_pulled_once_and_a_session_may_change_its_files(folders: SessionFolders) -> None:
    async with LoopbackRegistry() as registry:
        options = ApptainerOptions(image=f"docker://{registry.image}")
        told: list[str] = []
        await ApptainerRuntime(options).provide(MISSING, told.append)
        runtime, before = ApptainerRuntime(options), len(registry.served)
        try:
            await runtime.start(msgspec.structs.replace(folders, permits=MISSING))
            script = sh("echo $PULLED; cat /testbed/src/code.py; rm /testbed/src/code.py; ls /testbed/src")
            assert (await runtime.exec(script)).stdout_tail == "yes\n1\n"
        finally:
            await runtime.stop()
        assert told[0] == f"Pulling docker://{registry.image}"
        assert len(registry.served) == before


async def test_nothing_is_pulled_by_default(folders: SessionFolders) -> None:
    runtime = ApptainerRuntime(ApptainerOptions(image="docker://127.0.0.1:1/none"))
    with pytest.raises(RuntimeFailure, match=r"permits\.pull"):
        await runtime.start(folders)
    await runtime.stop()


async def test_a_pull_that_fails_names_the_fix_and_leaves_nothing(tmp_path: Path) -> None:
    runtime = ApptainerRuntime(ApptainerOptions(image="docker://127.0.0.1:1/none"))
    with pytest.raises(RuntimeFailure, match=r"cannot pull docker://127.*check its name"):
        await runtime.provide(MISSING, lambda _: None)
    assert [path.name for path in (tmp_path / "cache" / "apptainer-images").iterdir() if path.is_dir()] == []
