"""Evaluators of one's own. The reward is the share of wanted words in the agent's last message, or in a file.

    evaluator = { name = "my_evaluator:words_in_answer", options = { words = ["red", "blue"] } }
    evaluator = { name = "my_evaluator:WordsInFile", options = { path = "notes.txt", words = ["red", "blue"] } }

Run it with this folder on Python's path: `PYTHONPATH=examples polar run TASKS`.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from polar.evaluators.base import Evidence
from polar.types import Score, Strict


def words_in_answer(evidence: Evidence, words: list[str]) -> float:
    """A plain function is enough where a number says it all; its further parameters are the options."""
    return sum(word in evidence.answer.split() for word in words) / len(words)


class WordsInFileOptions(Strict):
    path: str
    """Relative to the workspace."""
    words: tuple[str, ...] = Field(min_length=1)


class WordsInFile:
    Options: type[BaseModel] = WordsInFileOptions

    def __init__(self, options: WordsInFileOptions) -> None:
        self._options = options

    async def evaluate(self, evidence: Evidence) -> Score:
        """The harness is dead by now; its files are as it left them. Any other error than a missing file is
        raised: it becomes a failure of the evaluator, not a reward of zero."""
        path, wanted = self._options.path, self._options.words
        try:
            text = (await evidence.runtime.get(path)).decode(errors="replace")
        except FileNotFoundError:
            return Score(reward=0.0, reasons=(f"there is no {path}",))
        missing = [word for word in wanted if word not in text.split()]
        return Score(
            reward=1 - len(missing) / len(wanted),
            metrics={"words_found": len(wanted) - len(missing)},
            reasons=tuple(f"{path} lacks {word!r}" for word in missing),
        )
