"""A trace as a trainer takes it: plain rows and numpy arrays."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy
import pytest

from polar.types import PolicySpan, Span, Trace, TraceRow, logprobs, loss_mask, token_ids
from polar.types.shared_ids import SharedIds, as_ids

SPANS = (
    Span("s-0.1.1", 0, 2, policy_version="7"),
    Span("s-0.1.2", 3, 2, "7", (PolicySpan("7", 0, 1), PolicySpan("8", 1, 1))),
)


def a_trace(**changes: Any) -> Trace:
    """Two replies of two tokens with a token of the harness between them; the last one has no logprob."""
    values: dict[str, Any] = {
        "session_id": "s-0",
        "prompt_ids": token_ids([1, 2, 3]),
        "response_ids": token_ids([10, 11, 50, 12, 13]),
        "loss_mask": loss_mask([1, 1, 0, 1, 0]),
        "logprobs": logprobs([-0.5, -1.0, 0.0, -0.25, 0.0]),
        "spans": SPANS,
        "reward": 0.5,
        "task_id": "s",
        "group_id": "g",
        "sample": 3,
        "attempt": 2,
    }
    return Trace(**(values | changes))


def test_a_row_has_every_column_as_a_plain_value() -> None:
    row = a_trace().to_row()
    assert row == {
        "session_id": "s-0",
        "task_id": "s",
        "group": "g",
        "sample": 3,
        "attempt": 2,
        "kind": "agent",
        "reward": 0.5,
        "prompt_ids": [1, 2, 3],
        "completion_ids": [10, 11, 50, 12, 13],
        "mask": [1, 1, 0, 1, 0],
        "logprobs": [-0.5, -1.0, 0.0, -0.25, 0.0],
        "policy_versions": ["7", "8"],
        "context_exact": True,
        "failure": "",
    }
    assert json.loads(json.dumps(row)) == row and row.keys() == TraceRow.__annotations__.keys()


def test_what_is_missing_stays_missing() -> None:
    row = a_trace(reward=None, failure="engine: EngineError", context_exact=False, kind="subagent").to_row()
    assert (row["reward"], row["failure"], row["context_exact"]) == (None, "engine: EngineError", False)
    assert row["kind"] == "subagent"


def shared_prompt() -> Any:
    return as_ids(SharedIds(SharedIds(None, token_ids([1, 2])), token_ids([3, 4]), own=1))


@pytest.mark.parametrize("prompt", [token_ids([1, 2, 3]), shared_prompt()], ids=["array", "shared"])
def test_arrays_hold_what_the_row_holds(prompt: Any) -> None:
    trace = a_trace(prompt_ids=prompt)
    arrays, row = trace.to_numpy(), trace.to_row()
    types = {"prompt_ids": "int32", "completion_ids": "int32", "mask": "int8", "logprobs": "float32"}
    assert {name: array.dtype.name for name, array in arrays.items()} == types
    for name, array in arrays.items():
        assert array.tolist() == row[name]  # type: ignore[literal-required]


def test_arrays_are_copies() -> None:
    trace = a_trace()
    trace.to_numpy()["mask"][:] = 0
    assert trace.trainable_tokens == 3 and numpy.all(trace.to_numpy()["mask"] == [1, 1, 0, 1, 0])


def test_without_numpy_the_error_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ImportError, match="pip install numpy"):
        a_trace().to_numpy()
