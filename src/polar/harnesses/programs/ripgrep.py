"""ripgrep, installed with harnesses that would otherwise download it while they run."""

from __future__ import annotations

from pathlib import Path

from polar.harnesses.base import NpmPack
from polar.harnesses.programs.machine import fitting

RIPGREP_VERSION = "1.18.0"
RIPGREP_PACKAGES = {
    ("linux", "x86_64"): "@vscode/ripgrep-linux-x64",
    ("linux", "aarch64"): "@vscode/ripgrep-linux-arm64",
    ("darwin", "x86_64"): "@vscode/ripgrep-darwin-x64",
    ("darwin", "arm64"): "@vscode/ripgrep-darwin-arm64",
}
FOUND_BY_PATH = 'export PATH="$PATH:$0"; exec "$@"'


def ripgrep_pack() -> NpmPack:
    return NpmPack(fitting(RIPGREP_PACKAGES, "ripgrep"), RIPGREP_VERSION)


def finding_ripgrep(command: tuple[str, ...], installed: dict[str, Path]) -> tuple[str, ...]:
    """The command with `rg` at the end of its PATH."""
    folder = installed[ripgrep_pack().package] / "bin"
    return ("/bin/sh", "-c", FOUND_BY_PATH, str(folder), *command)
