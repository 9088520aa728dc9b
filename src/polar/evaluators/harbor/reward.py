"""The reward files of a Harbor verifier: `reward.json` or `reward.txt` in its log folder, as Harbor reads them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

from polar.types import Score, ScorePart

JSON, TEXT = "reward.json", "reward.txt"
"""Harbor prefers the first."""
REWARD = "reward"
MAX_BYTES = 2**20


class UnreadableReward(ValueError):
    """A reward file that says nothing."""


def reward_files(folder: Path) -> list[str]:
    return [name for name in (JSON, TEXT) if (folder / name).is_symlink() or (folder / name).exists()]


def is_disguised(path: Path) -> bool:
    """A link or a folder in its place."""
    return path.is_symlink() or not path.is_file()


def score_of_file(path: Path, key: str | None = None) -> Score:
    """Raises `UnreadableReward`. `key`: the number of `reward.json` that is the reward."""
    if path.stat().st_size > MAX_BYTES:
        raise UnreadableReward(f"{path.name} is larger than {MAX_BYTES} bytes")
    text = path.read_text(errors="replace")
    if not text.strip():
        raise UnreadableReward(f"{path.name} is empty")
    return _of_numbers(_numbers(text), key) if path.name == JSON else Score(reward=_number(text.strip(), TEXT))


def _of_numbers(numbers: dict[str, float], key: str | None) -> Score:
    """The one under `key`, or `reward`, or the only one; otherwise the mean of all, which are its parts then."""
    if key is not None and key not in numbers:
        raise UnreadableReward(f"{JSON} has no {key!r}, only {', '.join(numbers)}")
    chosen = key or (REWARD if REWARD in numbers else next(iter(numbers)) if len(numbers) == 1 else None)
    if chosen is not None:
        others = {name: value for name, value in numbers.items() if name != chosen}
        return Score(reward=numbers[chosen], metrics=others)
    weight = 1 / len(numbers)
    parts = {name: ScorePart.of(Score(reward=value), weight) for name, value in numbers.items()}
    return Score(reward=sum(numbers.values()) * weight, parts=parts)


def _numbers(text: str) -> dict[str, float]:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableReward(f"{JSON} is not JSON: {error}") from error
    if not isinstance(found, dict) or not found:
        raise UnreadableReward(f"{JSON} must be an object of numbers")
    return {name: _number(value, JSON) for name, value in cast("dict[str, Any]", found).items()}


def _number(value: Any, where: str) -> float:
    is_text_of_json = where == JSON and not isinstance(value, int | float)
    try:
        number = math.nan if is_text_of_json else float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UnreadableReward(f"{where} holds {str(value)[:100]!r}, which is not a finite number")
    return number
