"""The harness port. A harness runs nothing itself: it names the packages to install and returns a `Launch`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec
from pydantic import BaseModel

from polar.types import CallProfile, HarnessUsage, Slot


class NpmPack(msgspec.Struct, frozen=True):
    """One tarball of the npm registry, unpacked without resolving dependencies or running scripts."""

    package: str
    version: str
    entry: str = ""
    """The path of its JavaScript program, if contained sessions shall find its compiled code."""


class HarnessContext(msgspec.Struct, frozen=True):
    """What a harness may know about its session."""

    instruction: str
    slot: Slot
    session_id: str
    workspace: str
    home: str
    installed: dict[str, Path]
    """Package name to the folder of its unpacked tarball, as the runtime sees it."""
    intercepted: tuple[str, ...] = ()
    """Hosts whose names lead to the session's gateway: a harness needs no base URL for these."""


class Launch(msgspec.Struct, frozen=True):
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    home_files: dict[str, str] = {}
    """Files of the harness's home, such as its settings: relative path to text."""
    workspace_files: dict[str, str] = {}
    logs: tuple[str, ...] = ()
    """Files and folders of the home that record what the harness did; kept after the session if they exist."""


class Harness(Protocol):
    Options: type[BaseModel]
    name: str
    version: str

    def requirements(self) -> tuple[NpmPack, ...]: ...

    def program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        """The start of each of its command lines; with `--version` it prints the version."""
        ...

    def launch(self, context: HarnessContext) -> Launch: ...

    def profile(self) -> CallProfile: ...


class LoggingHarness(Harness, Protocol):
    """A harness that logs its own use of the model, by which a session's health is checked."""

    def usage_of(self, logs: Path) -> HarnessUsage | None:
        """What the log counts. `logs` is a copy of the home with only what `Launch.logs` names. None: it has no
        log. Raises if the log cannot be read."""
        ...
