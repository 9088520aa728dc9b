"""The harness port. A harness runs nothing: it says what to install and returns a `Launch`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec
from pydantic import BaseModel

from polar.types import CallProfile, Slot


class NpmPack(msgspec.Struct, frozen=True):
    """One tarball of the npm registry, unpacked as it is: no dependency is resolved, no script is run."""

    package: str
    version: str


class HarnessContext(msgspec.Struct, frozen=True):
    """All a harness may know of its session."""

    instruction: str
    slot: Slot
    session_id: str
    workspace: str
    home: str
    installed: dict[str, Path]
    """Package name to the folder its tarball was unpacked into, as the runtime sees it."""


class Launch(msgspec.Struct, frozen=True):
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    home_files: dict[str, str] = {}
    """Files of the harness's home, such as its settings: relative path to text."""
    workspace_files: dict[str, str] = {}
    logs: tuple[str, ...] = ()
    """Files and folders of the home that tell what the harness did; kept after the session where they are."""


class Harness(Protocol):
    Options: type[BaseModel]
    name: str
    version: str

    def requirements(self) -> tuple[NpmPack, ...]: ...

    def program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        """What every command line of it begins with; behind it `--version` tells the version."""
        ...

    def launch(self, context: HarnessContext) -> Launch: ...

    def profile(self) -> CallProfile: ...
