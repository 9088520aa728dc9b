"""Groups as a rollout server gives them, and a client that has them stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from typing import Any

from polar.credit.advantages import FinishedSession
from polar.credit.group import Group
from polar.types import (
    Call,
    Certificate,
    Failure,
    GroupStatus,
    Policy,
    Score,
    SessionResult,
    SessionUpload,
    Span,
    Stage,
    TaskRequest,
    TaskStatus,
    Trace,
    Trajectory,
    TrajectoryStatistics,
    logprobs,
    loss_mask,
    token_ids,
)

GONE = Failure(where="engine", type="Gone", message="the engine is gone")


def a_trace(session_id: str, tokens: Sequence[int] = (5, 6, 7), **fields: Any) -> Trace:
    """Prompt 1 2, the tokens sampled in one call, then the context 3."""
    size = len(tokens)
    values: dict[str, Any] = {
        "session_id": session_id,
        "prompt_ids": token_ids([1, 2]),
        "response_ids": token_ids([*tokens, 3]),
        "loss_mask": loss_mask([1] * size + [0]),
        "logprobs": logprobs([-0.5] * size + [0.0]),
        "spans": (Span(f"{session_id}.c", 0, size, policy_version=fields.pop("version", "0")),),
    }
    return Trace(**(values | fields))


def a_session(
    name: str, reward: float | None, *traces: Trace, failure: Failure | None = None, **fields: Any
) -> FinishedSession:
    """`name` is `TASK-INDEX`. Without traces given it has one."""
    task_id, _, index = name.rpartition("-")
    labels = {
        "task_id": task_id,
        "group_id": task_id,
        "reward": None if failure and failure.infrastructure else reward,
    }
    made = tuple(
        Trace(**{**{f: getattr(trace, f) for f in trace.__struct_fields__}, **labels})
        for trace in traces or (a_trace(name),)
    )
    trainable = sum(trace.trainable_tokens for trace in made)
    counts = {"sampled_tokens": trainable, "trainable_tokens": trainable, "dropped_tokens": 0}
    digests = {"calls_digest": "0", "traces_digest": "0"}
    result = SessionResult.model_validate(
        {
            "session_id": name,
            "task_id": task_id,
            "index": int(index),
            "attempt": 1,
            "stage": Stage.FAILED if failure else Stage.COMPLETED,
            "score": None if reward is None else Score(reward=reward),
            "failure": failure,
            "statistics": TrajectoryStatistics(traces=len(made), trainable_tokens=trainable),
            "certificate": Certificate.model_validate(
                {"builder": "b", "calls": 1, "traces": len(made), "exact": True, **counts, **digests}
            ),
            **fields,
        }
    )
    return FinishedSession(result, Trajectory(session_id=name, builder="b", traces=made))


def a_group(name: str, *rewards: float | None) -> Group:
    """One session of one trace for each reward; None: lost through infrastructure."""
    sessions = [
        a_session(f"{name}-{index}", reward, failure=GONE if reward is None else None)
        for index, reward in enumerate(rewards)
    ]
    return Group(name, tuple(sessions))


class StoredClient:
    """A `PolarClient` whose sessions have all ended: the n-th task that is submitted gets the n-th group."""

    calls: Sequence[Call] = ()
    """Of every session."""

    def __init__(self, *groups: Group, version: str = "0") -> None:
        self._groups = list(groups)
        self._of: dict[str, Group] = {}
        self._version = version
        self.submitted: list[TaskRequest] = []
        self.cancelled: list[str] = []
        self.versions: list[str] = []
        """What the policy was set to; `paused` and `resumed` between them."""

    async def __aenter__(self) -> StoredClient:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def submit_many(self, tasks: Iterable[TaskRequest | Mapping[str, Any]]) -> list[TaskStatus]:
        statuses: list[TaskStatus] = []
        for task in tasks:
            request = task if isinstance(task, TaskRequest) else TaskRequest.model_validate(task)
            group = self._groups.pop(0)
            assert len(group.sessions) == request.num_samples, "the stored group has another size"
            self.submitted.append(request)
            self._of[group.group_id] = group
            statuses.append(
                TaskStatus(
                    task_id=group.group_id, num_samples=request.num_samples, submitted=0.0, stages={}, done=True
                )
            )
        return statuses

    async def groups(
        self,
        *,
        task_ids: Collection[str] | None = None,
        group_ids: Collection[str] | None = None,
        after: int = 0,
    ) -> AsyncGenerator[Group]:
        for name in reversed(sorted(task_ids or ())):  # as they complete, not as they were submitted
            yield self._of[name]

    async def cancel_task(self, task_id: str) -> int:
        self.cancelled.append(task_id)
        return 1

    async def group(self, group_id: str) -> GroupStatus:
        size = len(self._of[group_id].sessions)
        return GroupStatus(group_id=group_id, task_ids=(group_id,), sessions=size, unfinished=0, done=True)

    async def upload(self, session_id: str) -> SessionUpload:
        everything = [session for group in self._of.values() for session in group.sessions]
        (found,) = [session for session in everything if session.result.session_id == session_id]
        return SessionUpload(found.result.model_dump_json().encode(), found.trajectory, tuple(self.calls))

    async def policy(self) -> Policy:
        return Policy(version=self._version)

    async def pause(self, *, wait: bool = False, timeout_s: float | None = None) -> Policy:
        assert wait, "a pause without waiting does not drain"
        self.versions.append("paused")
        return await self.policy()

    async def resume(self) -> Policy:
        self.versions.append("resumed")
        return await self.policy()

    async def set_policy_version(self, version: str | int) -> Policy:
        self._version = str(version)
        self.versions.append(str(version))
        return await self.policy()
