"""Packages come from an `npm` on PATH; here a small script packs the test's files."""

from __future__ import annotations

import asyncio
import io
import stat
import tarfile
from pathlib import Path

import pytest

from polar.errors import HarnessError
from polar.harnesses.base import NpmPack
from polar.harnesses.programs.install import install
from waiting import until

PACK = NpmPack("@acme/agent", "1.2.3")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def npm(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake npm; it records its calls and copies `package.tgz` of its folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    npm_does(folder, f'echo "$*" >>{folder}/calls; cp {folder}/package.tgz acme-agent-1.2.3.tgz')
    tarball(folder, {"package/package.json": b"{}", "package/bin/agent": b"#!/bin/sh\n"})
    return folder


def npm_does(folder: Path, script: str) -> None:
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)


def tarball(folder: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(folder / "package.tgz", "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if "/bin/" in name else 0o644
            archive.addfile(entry, io.BytesIO(content))


async def test_a_package_is_unpacked_into_the_cache(npm: Path, cache: Path) -> None:
    installed = await install([PACK])

    folder = installed["@acme/agent"]
    assert folder == cache / "npm" / "acme+agent-1.2.3"
    assert sorted(path.name for path in folder.iterdir()) == ["bin", "package.json"]
    assert (folder / "bin" / "agent").stat().st_mode & stat.S_IXUSR
    assert "pack --ignore-scripts" in (npm / "calls").read_text()
    assert "@acme/agent@1.2.3" in (npm / "calls").read_text()


async def test_it_is_fetched_once(npm: Path) -> None:
    await asyncio.gather(*(install([PACK]) for _ in range(5)))
    await install([PACK])
    assert len((npm / "calls").read_text().splitlines()) == 1


async def test_a_package_in_the_cache_needs_no_npm(npm: Path) -> None:
    await install([PACK])
    (npm / "npm").unlink()
    assert await install([PACK])


async def test_without_npm_the_message_names_the_cure(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HarnessError, match=r"install Node\.js 20\+"):
        await install([PACK])


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("npm error code ETARGET", "the npm registry has no @acme/agent@1.2.3"),
        ("npm ERR! code E404", "the npm registry has no @acme/agent@1.2.3"),
        ("npm error code ENOTFOUND", "cannot reach the npm registry"),
        ("npm error code ECONNREFUSED", "cannot reach the npm registry"),
        ("npm error code EWHATEVER", "failed: npm error code EWHATEVER"),
        ("", "no error output"),
    ],
)
async def test_a_failure_says_what_is_wrong_and_leaves_nothing(
    npm: Path, cache: Path, said: str, message: str
) -> None:
    npm_does(npm, f"echo '{said}' >&2; exit 1")
    with pytest.raises(HarnessError, match=message):
        await install([PACK])
    assert [path for path in (cache / "npm").iterdir() if path.is_dir()] == []


async def test_a_cancelled_download_leaves_neither_process_nor_folder(npm: Path, cache: Path) -> None:
    npm_does(npm, f"echo $$ >{npm}/pid; exec sleep 1000")
    task = asyncio.create_task(install([PACK]))
    await until(lambda: (npm / "pid").exists())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [path for path in (cache / "npm").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    "files",
    [
        {"package/../../../escape": b""},
        {"../escape": b""},
        {"package/a": b"", "other/b": b""},
        {"package.json": b"{}"},
    ],
    ids=["out by a detour", "out", "two tops", "no top"],
)
async def test_a_strange_tarball_is_refused(npm: Path, tmp_path: Path, files: dict[str, bytes]) -> None:
    tarball(npm, files)
    with pytest.raises(HarnessError):
        await install([PACK])
    assert not list(tmp_path.rglob("escape"))


async def test_a_broken_tarball_is_refused(npm: Path) -> None:
    (npm / "package.tgz").write_bytes(b"not a tarball")
    with pytest.raises(HarnessError, match="cannot unpack"):
        await install([PACK])


@pytest.mark.parametrize("version", ["latest", "^1.0.0", "1.2", "../../x", "", "1.2.3/../../x", "--help"])
async def test_only_an_exact_version_will_do(cache: Path, version: str) -> None:
    with pytest.raises(HarnessError, match="not an exact version"):
        await install([NpmPack("agent", version)])


@pytest.mark.parametrize("package", ["../x", "--global", "a/b", "git+ssh://x", "", "@a/", "A B"])
async def test_only_a_package_name_will_do(cache: Path, package: str) -> None:
    with pytest.raises(HarnessError, match="not an npm package name"):
        await install([NpmPack(package, "1.0.0")])


async def test_a_version_may_be_a_prerelease(npm: Path) -> None:
    assert (await install([NpmPack("agent", "1.0.0-beta.1")]))["agent"].name == "agent-1.0.0-beta.1"
