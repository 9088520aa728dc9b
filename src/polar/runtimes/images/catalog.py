"""Images that `polar image build` made: their folders in the cache, their records and their root folders.

An image is a folder `images/<name>` of the cache: its tar, a record of its content, and, for runtimes that use a
folder, the unpacked root.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from pydantic import ValidationError

from polar.config import cache_dir
from polar.errors import RuntimeFailure
from polar.runtimes.files.folders import remove_tree
from polar.types import Strict

NAME_PATTERN = r"[a-z0-9]+([._-][a-z0-9]+)*"
"""Also a valid name for the Docker Engine."""
RECORD_FILE = "image.json"
USED_FILE = "used"
"""Its time is that of the last use."""

Kind = Literal["debian", "busybox"]


class Recipe(Strict):
    """What an image is made of."""

    kind: Kind = "debian"
    packages: tuple[str, ...] = ()
    """Requested Debian packages, without their dependencies."""
    pip: tuple[str, ...] = ()
    """Requested Python packages, as pip takes them."""
    suite: str = ""
    """Empty: the kind has none."""


class ImageRecord(Strict):
    """The file `image.json` of the image's folder."""

    recipe: Recipe
    versions: dict[str, str]
    """Of every package, by name; those of Python packages as `pip:<name>`."""
    tar_sha256: str
    tar_bytes: int
    built: float


class BaseImage(msgspec.Struct, frozen=True):
    name: str
    folder: Path
    record: ImageRecord

    @property
    def tar(self) -> Path:
        return self.folder / "root.tar"

    @property
    def used_at(self) -> float:
        """When a session last started in it; when it was built, if none has."""
        try:
            return (self.folder / USED_FILE).stat().st_mtime
        except OSError:
            return self.record.built

    @property
    def root(self) -> Path:
        """Exists only if the image was built for runtimes that use a folder."""
        return self.folder / "root"


def images_dir() -> Path:
    return cache_dir() / "images"


def find(name: str) -> BaseImage | None:
    """The image of that name, if it was built."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise RuntimeFailure(
            f"{name!r} is not an image name: use lower-case letters and digits, with '.', '_' or '-' between them"
        )
    folder = images_dir() / name
    try:
        record = ImageRecord.model_validate_json((folder / RECORD_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise RuntimeFailure(
            f"cannot read image {name!r} at {folder}; `polar image rm {name}` removes it: {error}"
        ) from error
    return BaseImage(name, folder, record)


def root_folder(name_or_path: str) -> Path:
    """The root folder of a built image, or the folder at a path, which has a slash in it."""
    if "/" in name_or_path:
        path = Path(name_or_path).expanduser()
        if not path.is_dir():
            raise RuntimeFailure(f"there is no image folder {name_or_path}")
        return path.absolute()
    image = find(name_or_path)
    build = f"`polar image build {name_or_path}`"
    if image is None:
        raise RuntimeFailure(f"there is no image {name_or_path!r}: {build} builds it; write a path with a slash")
    if not image.root.is_dir():
        raise RuntimeFailure(f"image {name_or_path!r} has no root folder: {build} unpacks it")
    note_use(name_or_path)
    return image.root


def note_use(name: str) -> None:
    """Records that a session uses a built image now; other names and failures do not matter."""
    with suppress(OSError):
        if re.fullmatch(NAME_PATTERN, name) and (images_dir() / name).is_dir():
            (images_dir() / name / USED_FILE).touch()


def built_images() -> list[str]:
    """Their names, including those whose record cannot be read."""
    folder = images_dir()
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.name for path in found if re.fullmatch(NAME_PATTERN, path.name) and path.is_dir())


def unpacked_images() -> tuple[str, ...]:
    """Names of those that runtimes which use a folder can start."""
    return tuple(name for name in built_images() if (images_dir() / name / "root").is_dir())


def known(name: str) -> str:
    """Returns the name if the image exists."""
    if name not in built_images():
        raise RuntimeFailure(f"there is no image {name!r}; `polar image ls` lists them")
    return name


def remove(name: str) -> None:
    """Removes it from the cache. Running sessions lose the files of its root folder."""
    remove_tree(images_dir() / known(name))
