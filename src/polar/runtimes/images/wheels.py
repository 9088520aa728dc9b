"""Python packages of a Debian image: downloaded by this machine's pip, installed by the image's own.

The machine's pip knows the machine's indexes and certificates; the image's pip works offline and as the image's
Python. Only wheels are used, so no package runs code of its own while the image is built.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shlex
import shutil
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

from polar.errors import RuntimeFailure

REQUIREMENT = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?((===?|~=|!=|<=?|>=?)[A-Za-z0-9.*+!_-]+,?)*"
)
PACKAGES = ("python3", "python3-pip")
"""Debian packages that installing wheels needs."""
OLDEST_LIBC, NEWEST_LIBC = 17, 41
"""Of the wheels for glibc 2.x that an image may use: its own pip refuses those that are too new for it."""
SCRATCH = "tmp/polar-wheels"
INSTALLED = re.compile(r"(?:\./)?usr/local/lib/python[\d.]+/dist-packages/([^/]+)-([^-/]+)\.dist-info/?")


def checked(requirements: Iterable[str]) -> tuple[str, ...]:
    chosen = tuple(sorted(set(requirements)))
    for text in chosen:
        if not REQUIREMENT.fullmatch(text):
            raise RuntimeFailure(f"{text!r} is not a Python package such as numpy or requests==2.32.3")
    return chosen


def wheel_hooks(requirements: tuple[str, ...]) -> tuple[str, ...]:
    """Shell commands that mmdebstrap runs on this machine; `$1` is the image's root folder."""
    if not requirements:
        return ()
    wanted = shlex.join(requirements)
    libc = (f"manylinux_2_{minor}" for minor in range(NEWEST_LIBC, OLDEST_LIBC - 1, -1))
    machine = platform.machine()
    platforms = " ".join(f"--platform {name}_{machine}" for name in (*libc, "manylinux2014"))
    version = """chroot "$1" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])'"""
    download = (
        f'{_pip()} download --quiet --no-cache-dir --disable-pip-version-check --dest "$1/{SCRATCH}"'
        f' --only-binary=:all: --implementation cp --python-version "$version" {platforms} {wanted}'
    )
    install = (
        'env -i PATH="$PATH" PIP_BREAK_SYSTEM_PACKAGES=1 chroot "$1" python3 -m pip install --quiet --no-cache-dir'
        f" --no-index --find-links /{SCRATCH} {wanted} 2>&1"
    )
    return (f"version=$({version}) && {download}", f'{install} && rm -r "$1/{SCRATCH}"')


def wheels_in(tar: Path) -> dict[str, str]:
    """Versions of the installed Python packages, as `pip:<name>`."""
    with tarfile.open(tar) as archive:
        found = (INSTALLED.fullmatch(name) for name in archive.getnames())
        return {f"pip:{match[1].lower().replace('_', '-')}": match[2] for match in found if match}


def _pip() -> str:
    if importlib.util.find_spec("pip") is not None:
        return shlex.join((sys.executable, "-m", "pip"))
    found = shutil.which("pip3") or shutil.which("pip")
    if found is None:
        raise RuntimeFailure("pip, which downloads Python packages, is not on PATH: `apt-get install python3-pip`")
    return shlex.quote(found)
