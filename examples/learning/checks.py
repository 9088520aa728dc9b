"""An evaluator: the share of shell checks that hold in the workspace. All of them: 1.0, the task is solved."""

from __future__ import annotations

from pydantic import Field

from polar.evaluators.base import Evidence
from polar.runtimes.base import Command
from polar.types import Score, Strict


class Checks:
    class Options(Strict):
        checks: tuple[str, ...] = Field(min_length=1)
        """Each a line for `sh -c` that ends with code 0 if it holds."""

    def __init__(self, options: Options) -> None:
        self._checks = options.checks

    async def evaluate(self, evidence: Evidence) -> Score:
        held = [await self._holds(evidence, check) for check in self._checks]
        missed = tuple(
            f"does not hold: {check}" for check, holds in zip(self._checks, held, strict=True) if not holds
        )
        return Score(reward=sum(held) / len(held), metrics={"held": sum(held)}, reasons=missed)

    async def _holds(self, evidence: Evidence, check: str) -> bool:
        return (await evidence.runtime.exec(Command(("sh", "-c", check)))).exit_code == 0
