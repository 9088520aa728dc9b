"""A task that a random model can learn: one call, and a reward for tokens of one half of the vocabulary."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import BaseModel

from polar.evaluators.base import Evidence
from polar.types import Strict

HALF = 24_576


class LowerHalf:
    """The share of sampled tokens whose id is in the lower half."""

    Options: type[BaseModel] = Strict

    def __init__(self, options: BaseModel) -> None: ...

    def evaluate(self, evidence: Evidence) -> float:
        sampled = [
            token
            for trace in evidence.trajectory.traces
            for token, trained in zip(trace.response_ids, trace.loss_mask, strict=True)
            if trained
        ]
        return sum(token < HALF for token in sampled) / max(1, len(sampled))


def task(number: int) -> dict[str, object]:
    return {
        "instruction": "Say something.",
        "harness": {
            "name": "shell",
            "options": {"argv": [sys.executable, str(Path(__file__).with_name("ask_once.py"))]},
        },
        "evaluator": "toy_world:LowerHalf",
        "sampling": {"max_tokens": 8},
    }
