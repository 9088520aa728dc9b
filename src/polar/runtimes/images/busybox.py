"""A tar of a root file system with one static program: built in a second, for tests and first tries.

It has a shell and the usual commands but no C library, so most programs of other images do not run in it.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

from polar.errors import RuntimeFailure
from polar.runtimes.images.catalog import Recipe
from polar.runtimes.images.programs import output_of, run_program

PACKAGE = "busybox-static"
BUSYBOX = Recipe(kind="busybox", packages=(PACKAGE,))
FOLDERS = ("dev", "etc", "home", "opt", "proc", "root", "run", "sys", "usr", "usr/bin", "var")
OPEN_FOLDERS = ("tmp", "var/tmp")
LINKS = {"bin": "usr/bin", "sbin": "usr/bin", "usr/sbin": "bin"}
FILES = {
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hostname": "localhost\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/resolv.conf": "",
}


async def busybox_tar(tar: Path, tell: Callable[[str], None]) -> dict[str, str]:
    """Writes the tar and returns the versions of its packages."""
    scratch = tar.with_name("busybox")
    scratch.mkdir()
    try:
        program, version = await _program(scratch, tell)
        applets = (await output_of(str(program), "--list")).split()
        write_tar(tar, program.read_bytes(), applets)
    finally:
        shutil.rmtree(scratch)
    return {PACKAGE: version}


def write_tar(tar: Path, program: bytes, applets: list[str]) -> None:
    with tarfile.open(tar, "w") as archive:
        for name in FOLDERS:
            _add(archive, name, tarfile.DIRTYPE, 0o755)
        for name in OPEN_FOLDERS:
            _add(archive, name, tarfile.DIRTYPE, 0o1777)
        _add(archive, "usr/bin/busybox", tarfile.REGTYPE, 0o755, content=program)
        for name in sorted(set(applets) - {"busybox"}):
            _add(archive, f"usr/bin/{name}", tarfile.SYMTYPE, 0o777, link="busybox")
        for name, target in LINKS.items():
            _add(archive, name, tarfile.SYMTYPE, 0o777, link=target)
        for name, text in FILES.items():
            _add(archive, name, tarfile.REGTYPE, 0o644, content=text.encode())


async def _program(scratch: Path, tell: Callable[[str], None]) -> tuple[Path, str]:
    """Extracts the program from its package, without root and without changing the machine."""
    tell(f"downloading {PACKAGE}")
    await run_program(("apt-get", "download", "--quiet", PACKAGE), cwd=scratch)
    packages = list(scratch.glob("*.deb"))
    if len(packages) != 1:
        raise RuntimeFailure(f"apt-get download {PACKAGE} left {len(packages)} packages instead of one")
    await run_program(("dpkg-deb", "--extract", str(packages[0]), str(scratch)))
    program = next(
        (path for path in (scratch / "bin/busybox", scratch / "usr/bin/busybox") if path.is_file()), None
    )
    if program is None:
        raise RuntimeFailure(f"there is no busybox in {packages[0].name}")
    return program, await output_of("dpkg-deb", "--field", str(packages[0]), "Version")


def _add(
    archive: tarfile.TarFile, name: str, kind: bytes, mode: int, *, content: bytes = b"", link: str = ""
) -> None:
    entry = tarfile.TarInfo(f"./{name}")
    entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(content), link
    archive.addfile(entry, io.BytesIO(content))
