"""Values of the store's tests: a call as the gateway would append it, and a lease to append it under."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from polar.store.journal import Journal
from polar.tokens.sequences import digest_of
from polar.types import (
    Call,
    CallTimes,
    Lease,
    Message,
    Session,
    SessionResult,
    Stage,
    TaskRequest,
    logprobs,
    token_ids,
)


def _call(call_id: str = "c1", session_id: str = "add-0", **changes: Any) -> Call:
    values: dict[str, Any] = {
        "call_id": call_id,
        "session_id": session_id,
        "parent_id": None,
        "continues": False,
        "new_prompt_ids": token_ids([1, 2, 3]),
        "completion_ids": token_ids([4, 5]),
        "logprobs": logprobs([-0.5, -1.25]),
        "prompt_digest": digest_of(token_ids([1, 2, 3])),
        "prompt_tokens": 3,
        "finish_reason": "stop",
        "new_messages": (Message(role="user", content="add 2 and 2"),),
        "response": Message(role="assistant", content="4"),
        "tools": (),
        "new_items": (b"\x00" * 16,),
        "dialect": "openai_chat",
        "kind": "agent",
        "sampling": {"temperature": 1.0},
        "engine": "scripted",
        "logprob_mode": "raw",
        "times": CallTimes(arrived=1.0, rendered=1.5, sampled=2.0),
    }
    return Call(**(values | changes))


def _lease(session_id: str = "add-0", attempt: int = 1) -> Lease:
    session = Session(session_id=session_id, task_id="add", index=0, attempt=attempt)
    return Lease(session=session, task=TaskRequest(task_id="add", instruction="add 2 and 2"))


def _result(session_id: str = "add-0", attempt: int = 1, **changes: Any) -> SessionResult:
    values: dict[str, Any] = {"task_id": "add", "index": 0, "stage": Stage.COMPLETED}
    return SessionResult(session_id=session_id, attempt=attempt, **(values | changes))


@pytest.fixture
def make_call() -> Callable[..., Call]:
    return _call


@pytest.fixture
def make_lease() -> Callable[..., Lease]:
    return _lease


@pytest.fixture
def make_result() -> Callable[..., SessionResult]:
    return _result


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    async with await Journal.open(tmp_path / "journal.db") as opened:
        yield opened
