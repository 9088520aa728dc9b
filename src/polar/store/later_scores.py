"""Scores that other evaluators gave stored sessions later: files beside the run's own results, never changed."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from polar.errors import PolarError
from polar.store.paths import RunPaths
from polar.store.private import private_file
from polar.store.seal import later_seal_of
from polar.types import LaterScore


class LaterScoreUnreadable(PolarError):
    """A file of later scores is damaged, or was changed after it was written."""


def append_score(path: Path, later: LaterScore) -> None:
    with open(path, "a", encoding="utf-8", opener=private_file) as file:
        file.write(later.model_dump_json() + "\n")


def read_scores(run: RunPaths) -> list[LaterScore]:
    """Of all sessions, oldest first."""
    found = [later for path in run.rescores.glob("*/scores.jsonl") for later in _read(path)]
    return sorted(found, key=lambda later: later.made_at)


def _read(path: Path) -> list[LaterScore]:
    found: list[LaterScore] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            later = LaterScore.model_validate_json(line)
        except ValidationError as error:
            raise LaterScoreUnreadable(f"{path}:{number} is not a score: {error.errors()[0]['msg']}") from error
        if later.seal != later_seal_of(later):
            raise LaterScoreUnreadable(f"{path}:{number} was changed after it was sealed; remove the file")
        found.append(later)
    return found
