"""What a row's session begins with, checked before anything runs: a bundle or clone, or an image."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from polar.errors import ConfigError, PolarError
from polar.runtimes.docker.api import connected
from polar.runtimes.host.threads import in_loop
from polar.session.files.repository import missing_commits

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class RowOfRepository(Protocol):
    """Of a row what finding its repository needs."""

    @property
    def instance_id(self) -> str: ...
    @property
    def repo(self) -> str: ...
    @property
    def base_commit(self) -> str: ...


class Repositories:
    """A folder of bundles and clones by repository name."""

    def __init__(self, folder: Path | None) -> None:
        if folder is not None and not folder.is_dir():
            raise ConfigError(f"repositories: {folder} is not a folder")
        self._folder = folder

    def problems(self, rows: Iterable[RowOfRepository]) -> dict[str, str]:
        """Instance id to the reason why its repository cannot be used."""
        found: dict[str, str] = {}
        by_source = defaultdict[Path, list[RowOfRepository]](list)
        for row in rows:
            source = self.source_of(row)
            if isinstance(source, str):
                found[row.instance_id] = source
            elif not COMMIT.fullmatch(row.base_commit):
                found[row.instance_id] = f"base_commit: a whole commit id is needed (is {row.base_commit!r})"
            else:
                by_source[source].append(row)
        for source, some in by_source.items():
            found |= _without_commit(source, some)
        return found

    def source_of(self, row: RowOfRepository) -> Path | str:
        """The bundle or clone, or why there is none."""
        if self._folder is None:
            return "it has no image, and [swe] names no folder of repositories"
        name = row.repo.replace("/", "__")
        if name in ("", ".", "..") or "\0" in name:
            return f"repo: {row.repo!r} is no name of a repository"
        candidates = [self._folder / f"{name}.bundle", self._folder / name, self._folder / f"{name}.git"]
        missing = f"there is neither {name}.bundle nor {name} in {self._folder}"
        return next((path for path in candidates if path.exists()), missing)


def _without_commit(source: Path, rows: list[RowOfRepository]) -> dict[str, str]:
    try:
        missing = in_loop(lambda: missing_commits(source, [row.base_commit for row in rows]))
    except PolarError as error:
        return {row.instance_id: str(error) for row in rows}
    reason = "{} does not have its base_commit {}"
    return {
        row.instance_id: reason.format(source.name, row.base_commit) for row in rows if row.base_commit in missing
    }


async def images_here() -> frozenset[str]:
    """Names of the images that the Docker Engine of this machine has, with their tags."""
    async with connected() as api:
        listed = await api.call("GET", "/images/json")
    return frozenset(name for image in listed for name in image.get("RepoTags") or ())


def has_image(name: str, here: frozenset[str]) -> bool:
    tagged = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
    return tagged in here or tagged.removeprefix("docker.io/") in here
