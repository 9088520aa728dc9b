"""The evaluator port. An evaluator runs after the harness is dead and its slot is sealed.

It may ask for a runtime of its own, in which the agent never was: what it judges there, it copies there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from numbers import Real
from pathlib import Path
from typing import Protocol

import msgspec
from pydantic import BaseModel, ValidationError

from polar.config import PermittedEndpoint
from polar.errors import EvaluatorError
from polar.runtimes.base import Runtime
from polar.types import Call, Message, Score, Spec, TaskRequest, Trajectory, WorkspaceSource


class RuntimeRequest(msgspec.Struct, frozen=True):
    """A runtime of the evaluator's own. By default it begins as the session's did, and has no network."""

    runtime: Spec | None = None
    """None: the task's. Without `network` in its options it gets none, where the runtime can enforce that."""
    workspace: WorkspaceSource | None = None
    """None: the task's."""
    with_files: bool = True
    """Whether the task's `files` are written and its `prepare` steps run."""


class HarnessOutput(msgspec.Struct, frozen=True):
    """What the harness printed: the end of it, and the whole up to the runtime's cap on the node's disk."""

    stdout_tail: str = ""
    stderr_tail: str = ""
    stdout: Path | None = None
    stderr: Path | None = None


class Evidence(msgspec.Struct, frozen=True):
    task: TaskRequest
    runtime: Runtime
    """The session's. The agent may have replaced any program and file in it."""
    trajectory: Trajectory
    exit_code: int | None
    """None: the harness was killed, by a time-out or by us."""
    timed_out: bool
    patch: Path | None = None
    """Patch of the harness's changes, on the node's disk. None: the task did not ask for it, or it could not be
    made."""
    calls: tuple[Call, ...] = ()
    """Every captured call, oldest first: `call_id` is the key of `Score.call_rewards`, `response` the reply."""
    own_runtime: Runtime | None = None
    """Started, as `wants_runtime` asked; None: it did not."""
    output: HarnessOutput = HarnessOutput()
    stage_s: dict[str, float] = {}
    """Seconds in each stage so far."""
    endpoints: tuple[PermittedEndpoint, ...] | None = ()
    """Addresses that the node's operator lets evaluators call; None: any."""
    logs: Path | None = None
    """A folder on the node for what the evaluator keeps, part of the session's logs. Absolute: programs that the
    evaluator starts have other working folders."""

    @property
    def transcript(self) -> tuple[Message, ...]:
        """The conversation of the agent's last call, its reply included: messages, tool calls and tool results.
        `messages_of` gives that of any call."""
        last = next((call for call in reversed(self.calls) if call.kind == "agent"), None)
        return () if last is None else messages_of(last, self.calls)

    @property
    def answer(self) -> str:
        """The text of the agent's last message."""
        return next((each.content for each in reversed(self.transcript) if each.role == "assistant"), "")


def messages_of(call: Call, calls: Sequence[Call]) -> tuple[Message, ...]:
    """What the harness sent in this call, and the reply."""
    by_id = {each.call_id: each for each in calls}
    chain = [call]
    while (parent := by_id.get(chain[-1].parent_id or "")) is not None:
        chain.append(parent)
    sent = (message for each in reversed(chain) for message in each.new_messages)
    return (*sent, call.response)


Verdict = Score | float
"""A number is the reward; True and False are 1 and 0."""


class Evaluator(Protocol):
    Options: type[BaseModel]

    def evaluate(self, evidence: Evidence) -> Verdict | Awaitable[Verdict]:
        """Returns a verdict. Raises if there can be none: that is not a reward of zero. Runs in a thread of its
        own, as `def` or as `async def`."""
        ...


class RuntimeEvaluator(Evaluator, Protocol):
    """An evaluator with a runtime of its own, which starts while the agent still works."""

    def wants_runtime(self, task: TaskRequest) -> RuntimeRequest | None: ...


class WrongScore(EvaluatorError):
    """An evaluator returned a value that is not a verdict."""


def score_of(returned: object, evaluator: str) -> Score:
    """What an evaluator returned, as a score. Raises `WrongScore`."""
    wanted = "return a Score or a finite number; if there is no verdict, raise or return Score(reward=None)"
    try:
        if isinstance(returned, Score):
            return Score.model_validate(returned.model_dump())  # also one that was made without checks
        if isinstance(returned, Real):
            return Score(reward=float(returned))
    except (ValidationError, ValueError, OverflowError) as error:
        raise WrongScore(f"evaluator {evaluator!r} returned {_shown(returned)}: {wanted}") from error
    raise WrongScore(f"evaluator {evaluator!r} returned {_shown(returned)}: {wanted}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
