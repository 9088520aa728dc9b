"""An evaluator: the share of shell checks that hold in the workspace. All of them: 1.0, the task is solved.

In training, commands that a solution does not need can cost a little. Without that, all sessions of an easy group
have the same reward, and nothing keeps the policy from going on after the request is fulfilled.
"""

from __future__ import annotations

from pydantic import Field

from polar.evaluators.base import Evidence
from polar.runtimes.base import Command
from polar.types import Score, Strict

COST = 0.1
"""Of each command more than needed."""
MOST_COST = 0.3
"""A solution stays worth more than two of three checks."""


class Checks:
    class Options(Strict):
        checks: tuple[str, ...] = Field(min_length=1)
        """Each a line for `sh -c` that ends with code 0 if it holds."""
        commands: int | None = Field(default=None, ge=1)
        """How many a solution needs; None: further ones cost nothing."""

    def __init__(self, options: Options) -> None:
        self._checks = options.checks
        self._commands = options.commands

    async def evaluate(self, evidence: Evidence) -> Score:
        held = [await self._holds(evidence, check) for check in self._checks]
        missed = tuple(
            f"does not hold: {check}" for check, holds in zip(self._checks, held, strict=True) if not holds
        )
        reward = sum(held) / len(held) - self._cost(evidence)
        return Score(reward=max(0.0, reward), metrics={"held": sum(held)}, reasons=missed)

    async def _holds(self, evidence: Evidence, check: str) -> bool:
        return (await evidence.runtime.exec(Command(("sh", "-c", check)))).exit_code == 0

    def _cost(self, evidence: Evidence) -> float:
        if self._commands is None:
            return 0.0
        run = sum(message.role == "tool" for message in evidence.transcript)
        return min(MOST_COST, COST * max(0, run - self._commands))
