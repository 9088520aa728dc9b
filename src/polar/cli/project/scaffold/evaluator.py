"""The graders of this project: tasks name them as "evaluator:FUNCTION"."""

from polar.evaluators.base import Evidence
from polar.types import Score


async def file_holds(evidence: Evidence, path: str, words: list[str]) -> Score:
    """The share of `words` that stand in a file of the workspace. A file that is missing scores 0."""
    try:
        text = (await evidence.runtime.get(path)).decode(errors="replace")
    except FileNotFoundError:
        return Score(reward=0.0, reasons=(f"there is no {path}",))
    missing = [word for word in words if word not in text.split()]
    reasons = tuple(f"{path} lacks {word!r}" for word in missing)
    return Score(reward=1 - len(missing) / len(words), reasons=reasons)
