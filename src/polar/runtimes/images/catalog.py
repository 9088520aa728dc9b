"""Images that `polar image build` made: where they lie in the cache, what is known of them, their root folders.

An image is one folder `images/<name>` of the cache: the tar it came from, a record of what is in it, and, unpacked
for the runtimes that need no more than a folder, its root.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec
from pydantic import ValidationError

from polar.config import cache_dir
from polar.errors import RuntimeFailure
from polar.runtimes.files.folders import remove_tree
from polar.types import Strict

NAME_PATTERN = r"[a-z0-9]+([._-][a-z0-9]+)*"
"""What a container engine takes as a name too."""
RECORD_FILE = "image.json"

Kind = Literal["debian", "busybox"]


class Recipe(Strict):
    """What an image is made of."""

    kind: Kind = "debian"
    packages: tuple[str, ...] = ()
    """Debian packages that were asked for; those they need came along."""
    suite: str = ""
    """Empty: there is none to choose."""


class ImageRecord(Strict):
    """What was built; `image.json` of the image's folder."""

    recipe: Recipe
    versions: dict[str, str]
    """Of every package in it."""
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
    def root(self) -> Path:
        """There only where the image was built for runtimes that take a folder."""
        return self.folder / "root"


def images_dir() -> Path:
    return cache_dir() / "images"


def find(name: str) -> BaseImage | None:
    """The image of that name, if it was built."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise RuntimeFailure(
            f"{name!r} is not the name of an image: lower-case letters and digits, with '.', '_' or '-' between"
        )
    folder = images_dir() / name
    try:
        record = ImageRecord.model_validate_json((folder / RECORD_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise RuntimeFailure(
            f"image {name!r} at {folder} cannot be read; `polar image rm {name}` removes it: {error}"
        ) from error
    return BaseImage(name, folder, record)


def root_folder(name_or_path: str) -> Path:
    """The root folder of a built image, or the folder of that path. What has a slash in it is a path."""
    if "/" in name_or_path:
        path = Path(name_or_path).expanduser()
        if not path.is_dir():
            raise RuntimeFailure(f"there is no image folder {name_or_path}")
        return path.absolute()
    image = find(name_or_path)
    build = f"`polar image build {name_or_path}`"
    if image is None:
        raise RuntimeFailure(f"there is no image {name_or_path!r}: {build} makes one; a path has a slash in it")
    if not image.root.is_dir():
        raise RuntimeFailure(f"image {name_or_path!r} has no root folder: {build} unpacks it")
    return image.root


def built_images() -> list[str]:
    """Their names, also of those whose record cannot be read."""
    folder = images_dir()
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.name for path in found if re.fullmatch(NAME_PATTERN, path.name) and path.is_dir())


def known(name: str) -> str:
    """The name, if there is such an image."""
    if name not in built_images():
        raise RuntimeFailure(f"there is no image {name!r}; `polar image ls` lists those there are")
    return name


def remove(name: str) -> None:
    """Removes it from the cache. Sessions that run over its root folder lose what they have not read yet."""
    remove_tree(images_dir() / known(name))
