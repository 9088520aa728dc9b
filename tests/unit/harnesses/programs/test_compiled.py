"""Compiled code is made by a `bwrap` on PATH; here a small script stands in for it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from polar.harnesses.base import NpmPack
from polar.harnesses.programs.compiled import compiled_code
from polar.harnesses.programs.native import node_pack

AGENT = NpmPack("@acme/agent", "1.2.3", "dist/agent.js")
PACKS = (node_pack(), AGENT)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    (tmp_path / "bin").mkdir()
    return {node_pack().package: tmp_path / "node-22", AGENT.package: tmp_path / "acme+agent-1.2.3"}


def bwrap_does(folder: Path, script: str) -> None:
    program = folder / "bin" / "bwrap"
    program.write_text(f'#!/bin/sh\necho "$@" >>{folder}/calls\n{script}\n')
    program.chmod(0o755)


async def test_the_harness_is_started_once_at_the_paths_of_contained_sessions(
    tmp_path: Path, installed: dict[str, Path]
) -> None:
    bwrap_does(tmp_path, "true")

    first = await compiled_code(PACKS, installed)
    again = await compiled_code(PACKS, installed)

    assert first == again
    assert [program.mount_point for program in first] == ["/opt/polar/acme+agent-1.2.3.compiled"]
    assert first[0].source == tmp_path / "cache" / "compiled" / "acme+agent-1.2.3+node-22"
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.endswith("/opt/polar/node-22/bin/node /opt/polar/acme+agent-1.2.3/dist/agent.js --version")
    assert "--unshare-all" in call and "--setenv NODE_COMPILE_CACHE /opt/polar/acme+agent-1.2.3.compiled" in call


async def test_a_harness_that_does_not_start_is_not_tried_again(
    tmp_path: Path, installed: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    bwrap_does(tmp_path, "echo no user namespaces >&2; exit 1")

    with caplog.at_level(logging.INFO):
        (program,) = await compiled_code(PACKS, installed)
        await compiled_code(PACKS, installed)

    assert list(program.source.iterdir()) == []
    assert [record.getMessage() for record in caplog.records] == [
        "contained sessions compile acme+agent-1.2.3 at each start: no user namespaces"
    ]


async def test_without_bubblewrap_there_is_none(
    installed: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert await compiled_code(PACKS, installed) == ()


async def test_a_pack_without_a_javascript_program_has_none(tmp_path: Path, installed: dict[str, Path]) -> None:
    bwrap_does(tmp_path, "true")
    assert await compiled_code((node_pack(), NpmPack("@acme/agent", "1.2.3")), installed) == ()


async def test_a_program_without_node_of_its_own_has_none(tmp_path: Path, installed: dict[str, Path]) -> None:
    bwrap_does(tmp_path, "true")
    assert await compiled_code((AGENT,), {AGENT.package: installed[AGENT.package]}) == ()


async def test_a_cache_that_cannot_be_written_to_fails_no_session(
    tmp_path: Path, installed: dict[str, Path]
) -> None:
    bwrap_does(tmp_path, "true")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "compiled").write_text("in the way")
    assert await compiled_code(PACKS, installed) == ()
