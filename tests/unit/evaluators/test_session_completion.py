"""The default verdict: the harness came to its end, and there is something to train on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from workplace import FolderRuntime, evidence

from polar.errors import EvaluatorError
from polar.evaluators.base import Evaluator
from polar.registry import make
from polar.types import Score, Spec

EVALUATOR: Evaluator = make("evaluator", Spec(name="session_completion"))


async def verdict(**facts: Any) -> Score:
    return await EVALUATOR.evaluate(evidence(FolderRuntime(Path()), **facts))


async def test_a_harness_that_ended_well_after_captured_calls_is_worth_one() -> None:
    score = await verdict(exit_code=0, calls=3, trainable_tokens=40)
    assert score == Score(reward=1.0, metrics={"calls": 3, "trainable_tokens": 40})


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"exit_code": 2}, "the harness exited with 2"),
        ({"exit_code": -9}, "the harness exited with -9"),
        ({"exit_code": None}, "the harness was killed before it ended"),
        ({"exit_code": None, "timed_out": True}, "the harness ran out of time"),
    ],
)
async def test_a_harness_that_did_not_end_well_is_worth_nothing(facts: dict[str, Any], reason: str) -> None:
    score = await verdict(calls=3, trainable_tokens=40, **facts)
    assert (score.reward, score.reasons) == (0.0, (reason,))


async def test_calls_that_cannot_be_trained_on_are_worth_nothing() -> None:
    score = await verdict(calls=2, sampled_tokens=7, dropped={"kind:auxiliary": 3, "aborted": 4})
    assert score.reward == 0.0
    assert score.reasons == ("none of the 2 captured calls can be trained on (aborted, kind:auxiliary)",)


async def test_success_without_a_single_call_is_no_verdict_but_a_lost_base_url() -> None:
    with pytest.raises(EvaluatorError, match=r"no model call was captured.*base URL"):
        await verdict(exit_code=0, calls=0)


async def test_failure_without_a_single_call_is_worth_nothing() -> None:
    assert (await verdict(exit_code=1, calls=0)).reasons == ("the harness exited with 1",)
