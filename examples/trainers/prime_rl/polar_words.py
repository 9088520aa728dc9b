"""An environment package for prime-rl and verifiers: its rollouts are sessions of Polar (docs/trainers.md)."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.prime_rl import environment

CONFIG = BridgeConfig(
    url="http://127.0.0.1:8700",
    task={
        "harness": {"name": "pi", "options": {"tools": ["bash"]}},
        "sampling": {"max_tokens": 96},
        "budgets": {"run_s": 240, "max_calls": 6},
    },
    max_tokens=4096,  # no more than prime-rl's `seq_len`
)


class Row(vf.TaskData):
    polar: dict[str, Any] = {}
    """Fields of this row's own Polar task. A plain `TaskData` would drop it."""


WordTask = vf.Task[Row, vf.State, vf.TaskConfig]


class Words(vf.Taskset[WordTask]):
    def load(self) -> Iterator[Any]:
        for prompt, fields in ROWS:
            yield WordTask(Row(prompt=prompt, polar=fields), self.config.task)


def prints(command: str, pattern: str) -> dict[str, Any]:
    return {"name": "test_on_output", "options": {"command": command, "expect_pattern": pattern}}


ROWS: list[tuple[str, dict[str, Any]]] = [
    ("Write the word rose into the file flower.txt.", {"evaluator": prints("cat flower.txt", "^rose$")}),
    ("Copy the file x.txt to y.txt.", {"files": {"x.txt": "kept\n"}, "evaluator": prints("cat y.txt", "^kept$")}),
]

PolarWords = environment(CONFIG)
__all__ = ["PolarWords", "Words"]
