"""Compiled code of real pi in a contained session: Node.js takes it, and the session cannot change it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from polar.harnesses.pi import Pi, PiOptions
from polar.harnesses.programs.compiled import CACHE_VARIABLE, compiled_code
from polar.runtimes.base import Command, Program, SessionFolders
from polar.runtimes.bubblewrap.runtime import BubblewrapOptions, BubblewrapRuntime
from skips import skip_without_runtime


@pytest.fixture(scope="module")
def bubblewrap() -> None:
    skip_without_runtime("bubblewrap", asyncio.run(BubblewrapRuntime.lacking()))


@pytest.fixture
async def runtime(
    bubblewrap: None,
    installed_pi: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> AsyncIterator[BubblewrapRuntime]:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    programs = [Program(folder.name, folder) for folder in installed_pi.values()]
    compiled = await compiled_code(Pi(PiOptions()).requirements(), installed_pi)
    started = BubblewrapRuntime(BubblewrapOptions())
    await started.start(SessionFolders("s", tmp_path / "s", tmp_path / "logs", programs=(*programs, *compiled)))
    yield started
    await started.stop()


async def test_a_contained_session_runs_compiled_code(
    runtime: BubblewrapRuntime, installed_pi: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = [record.getMessage() for record in caplog.get_records("setup") if record.name == "polar.harnesses"]
    assert said == []  # pi has started in the sandbox of the node
    inside = {name: Path(runtime.program(Program(folder.name, folder))) for name, folder in installed_pi.items()}
    argv = (*Pi(PiOptions()).program(inside), "--version")
    folder = f"{inside[Pi.package]}.compiled"
    env = {CACHE_VARIABLE: folder, "NODE_DEBUG_NATIVE": "COMPILE_CACHE"}

    finished = await runtime.exec(Command(argv, env, "pi"))

    assert finished.exit_code == 0
    logged = (tmp_path / "logs" / "pi.stderr").read_text()
    assert "cli.js was accepted" in logged, logged[-2000:]
    assert (await runtime.exec(Command(("touch", f"{folder}/forged")))).exit_code != 0
