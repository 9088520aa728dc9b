"""Installs harnesses on the node: tarballs of the npm registry, unpacked once into the cache that all runs share.

No dependencies are resolved and no scripts run, so the cache holds exactly what the publisher packed.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

from polar.config import cache_dir
from polar.errors import HarnessError
from polar.harnesses.base import NpmPack
from polar.runtimes.host.spawn import errors_of
from polar.store.cache import cached_folder

PACKAGE_PATTERN = r"(@[a-z0-9][a-z0-9._~-]*/)?[a-z0-9][a-z0-9._~-]*"
VERSION_PATTERN = r"\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?"
NOT_FOUND_CODES = {"E404", "ETARGET"}
NETWORK_CODES = {
    *("ECONNREFUSED", "ECONNRESET", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "ENOTCACHED", "ENOTFOUND"),
    *("ERR_SOCKET_TIMEOUT", "ETIMEDOUT"),
}


async def install(packs: Iterable[NpmPack]) -> dict[str, Path]:
    """The folder of each package, by its name; downloads what is not in the cache."""
    return {pack.package: await _installed(pack) for pack in packs}


def cached(pack: NpmPack) -> Path | None:
    """Its folder, if it is in the cache."""
    folder = cache_dir() / _cache_name(pack)
    return folder if folder.is_dir() else None


async def _installed(pack: NpmPack) -> Path:
    async def fill(folder: Path) -> None:
        download = folder / ".download"
        download.mkdir()
        tarball = await _download(pack, download)
        await asyncio.to_thread(_unpack, tarball, folder)
        await asyncio.to_thread(shutil.rmtree, download)

    return await cached_folder(_cache_name(pack), fill)


def _cache_name(pack: NpmPack) -> str:
    """One name per package and version; `+` replaces the slash, because no package name has one."""
    if not re.fullmatch(PACKAGE_PATTERN, pack.package):
        raise HarnessError(f"{pack.package!r} is not an npm package name")
    if not re.fullmatch(VERSION_PATTERN, pack.version):
        raise HarnessError(
            f"{pack.version!r} is not an exact version of {pack.package}; write one such as 1.2.3,"
            " because a range or tag changes its meaning"
        )
    return f"npm/{pack.package.removeprefix('@').replace('/', '+')}-{pack.version}"


async def _download(pack: NpmPack, folder: Path) -> Path:
    wanted = f"{pack.package}@{pack.version}"
    npm_pack = ("npm", "pack", "--ignore-scripts", "--loglevel=error", "--update-notifier=false", wanted)
    try:
        exit_code, errors = await errors_of(*npm_pack, cwd=folder)
    except FileNotFoundError as error:
        raise HarnessError(f"cannot fetch {wanted}: npm is not on PATH; install Node.js 20+") from error
    if exit_code != 0:
        raise HarnessError(_why_not(wanted, errors))
    tarballs = list(folder.glob("*.tgz"))
    if len(tarballs) != 1:
        raise HarnessError(f"npm pack {wanted} left {len(tarballs)} tarballs instead of one")
    return tarballs[0]


def _why_not(wanted: str, errors: str) -> str:
    code = re.search(r"^npm (?:error|ERR!) code (\w+)", errors, re.MULTILINE)
    if code and code[1] in NOT_FOUND_CODES:
        return f"the npm registry has no {wanted} ({code[1]}); check the version"
    if code and code[1] in NETWORK_CODES:
        return f"cannot reach the npm registry for {wanted} ({code[1]}); check the network and `npm config`"
    return f"npm pack {wanted} failed: {errors[-1000:] or 'no error output'}"


def _unpack(tarball: Path, folder: Path) -> None:
    """Unpacks into `folder` without the tarball's top folder; refuses entries that lead outside."""
    unpacked = tarball.parent / "unpacked"
    try:
        with tarfile.open(tarball) as archive:
            archive.extractall(unpacked, filter="data")
    except tarfile.TarError as error:
        raise HarnessError(f"cannot unpack {tarball.name}: {error}") from error
    tops = list(unpacked.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        raise HarnessError(f"{tarball.name} is not an npm tarball: {len(tops)} entries at its top")
    for path in tops[0].iterdir():
        path.rename(folder / path.name)
