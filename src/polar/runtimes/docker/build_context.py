"""The context of a build: a tar with the same bytes for the same content, and its digest.

Links are packed as links, so nothing outside of the folder is read.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import orjson

from polar.errors import RuntimeFailure
from polar.runtimes.docker.options import DockerBuild

IGNORE_FILE = ".dockerignore"


def pack_context(build: DockerBuild, tar: IO[bytes]) -> str:
    """Writes the tar and returns the text of the Dockerfile."""
    context = Path(build.context)
    if not context.is_dir():
        raise RuntimeFailure(f"build: the context {context} is not a folder of this node")
    try:
        text = _dockerfile(context, build.dockerfile)
        ignored = IgnoreRules.of(context)
        with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in _entries(context, context, ignored, {build.dockerfile, IGNORE_FILE}):
                _add(archive, context, path)
    except (OSError, UnicodeDecodeError) as error:
        raise RuntimeFailure(f"build: cannot read the context {context}: {error}") from error
    tar.seek(0)
    return text


def digest_of(tar: IO[bytes], build: DockerBuild, bases: dict[str, str]) -> str:
    """Of all that makes the image. `bases`: the ids of the images that it starts from."""
    recipe = build.model_dump(exclude={"context"}) | {"bases": bases}
    digest = hashlib.sha256(orjson.dumps(recipe, option=orjson.OPT_SORT_KEYS))
    tar.seek(0)
    while piece := tar.read(2**20):
        digest.update(piece)
    tar.seek(0)
    return digest.hexdigest()[:32]


class IgnoreRules:
    """The patterns of a `.dockerignore`; the last one that fits decides."""

    def __init__(self, lines: list[str]) -> None:
        stripped = [line.strip() for line in lines]
        patterns = [line for line in stripped if line and not line.startswith("#")]
        self._rules = [(not line.startswith("!"), _regex(line.lstrip("!"))) for line in patterns]

    @classmethod
    def of(cls, context: Path) -> IgnoreRules:
        path = context / IGNORE_FILE
        return cls(path.read_text(encoding="utf-8").splitlines() if path.is_file() else [])

    def leaves_out(self, path: str) -> bool:
        return next((leaves for leaves, rule in reversed(self._rules) if rule.fullmatch(path)), False)

    @property
    def has_exceptions(self) -> bool:
        return any(not leaves for leaves, _ in self._rules)


def _regex(pattern: str) -> re.Pattern[str]:
    """It also fits everything below what it fits."""
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]*\])", os.path.normpath(pattern.strip()).strip("/"))
    inner = "".join(words.get(part, part if part.startswith("[") else re.escape(part)) for part in parts)
    return re.compile(f"{inner}(?:/.*)?", re.DOTALL)


def _dockerfile(context: Path, name: str) -> str:
    path = (context / name).resolve()
    if not path.is_relative_to(context.resolve()):
        raise RuntimeFailure(f"build: {name} leads out of the context")
    if not path.is_file():
        raise RuntimeFailure(f"build: the context {context} has no {name}")
    return path.read_text(encoding="utf-8")


def _entries(context: Path, folder: Path, ignored: IgnoreRules, kept: set[str]) -> Iterator[Path]:
    """Sorted. The Docker Engine needs the `kept` files even if they are ignored."""
    for path in sorted(folder.iterdir()):
        name = str(path.relative_to(context))
        holds_kept = any(each == name or each.startswith(f"{name}/") for each in kept)
        left_out = ignored.leaves_out(name) and not holds_kept
        if not left_out:
            yield path
        if path.is_dir() and not path.is_symlink() and (not left_out or ignored.has_exceptions):
            yield from _entries(context, path, ignored, kept)


def _add(archive: tarfile.TarFile, context: Path, path: Path) -> None:
    """Without times and owners, which do not change what is built."""
    seen = path.lstat()
    entry = tarfile.TarInfo(str(path.relative_to(context)))
    entry.mode = stat.S_IMODE(seen.st_mode)
    if stat.S_ISLNK(seen.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
        archive.addfile(entry)
    elif stat.S_ISDIR(seen.st_mode):
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    elif stat.S_ISREG(seen.st_mode):
        with path.open("rb") as file:
            entry.size = os.fstat(file.fileno()).st_size
            archive.addfile(entry, file)
