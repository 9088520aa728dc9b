"""How skills reach a harness: each in a folder of its own, under the one of the home where the harness looks."""

from __future__ import annotations

from collections.abc import Mapping


def skill_files(folder: str, skills: Mapping[str, str]) -> dict[str, str]:
    """Files of the home, by path. `folder` is relative to the home."""
    return {f"{folder}/{name}/SKILL.md": text for name, text in skills.items()}
