"""What all bridges share: tasks out, whole groups in, and of each session what a trainer takes.

A session gives one or more traces. Trainers that take one row take the main trace; those that take several get the
main trace last, because they look for the reward there. A session that may not be trained on gives none, and the
reason; it never becomes a reward of 0. One that is in the baseline all the same (`SessionResult.in_baseline`)
keeps its reward.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import compress
from typing import Any, Protocol

import msgspec

from polar.client.bodies import with_id
from polar.credit.advantages import CreditedTrace
from polar.credit.bounds import within_bounds
from polar.credit.group import Group
from polar.errors import PolarError
from polar.trainers.bridges.config import BridgeConfig
from polar.types import GroupStatus, Policy, SessionResult, SessionUpload, Stage, TaskRequest, TaskStatus


class GroupClient(Protocol):
    """What a bridge asks of the rollout server; `PolarClient` is one."""

    async def submit_many(self, tasks: Iterable[TaskRequest | Mapping[str, Any]]) -> list[TaskStatus]: ...

    def groups(
        self,
        *,
        task_ids: Collection[str] | None = None,
        group_ids: Collection[str] | None = None,
        after: int = 0,
    ) -> AsyncGenerator[Group]: ...

    async def cancel_task(self, task_id: str) -> int: ...

    async def policy(self) -> Policy: ...

    async def set_policy_version(self, version: str | int) -> Policy: ...

    async def pause(self, *, wait: bool = False, timeout_s: float | None = None) -> Policy: ...

    async def resume(self) -> Policy: ...

    async def group(self, group_id: str) -> GroupStatus: ...

    async def upload(self, session_id: str) -> SessionUpload: ...


class SessionTraces(msgspec.Struct, frozen=True):
    """One session, as a trainer takes it."""

    result: SessionResult
    traces: tuple[CreditedTrace, ...] = ()
    """What may be trained on, the main trace last. Empty: the session is left out."""
    left_out: str = ""
    """Why there are no traces: an `UntrainableReason`, or `out_of_bounds`: its tokens are too many or too old."""

    @property
    def main(self) -> CreditedTrace:
        return self.traces[-1]

    @property
    def reward(self) -> float:
        return self.result.reward or 0.0

    def is_compared(self, *, evaluation: bool = False) -> bool:
        """Whether its reward is compared with those of its group. An evaluation takes every verdict."""
        return self.result.in_baseline or (evaluation and self.result.reward is not None)

    @property
    def was_cut(self) -> bool:
        """A limit ended it, not the agent: of time, calls, tokens, or of the trainer's sequence length."""
        shortened = any(item.trace.metadata.get(CUT) for item in self.traces)
        return self.result.stage is Stage.TIMED_OUT or bool(self.result.ended_by) or shortened

    @property
    def advantage(self) -> float:
        """Of the main trace. All traces have the same unless the evaluator judged them one by one."""
        return advantage_of(self.main)


CUT = "cut_by_bridge"
OUT_OF_BOUNDS = "out_of_bounds"


def sessions_of(group: Group, config: BridgeConfig, version: str = "") -> list[SessionTraces]:
    """The sessions of a group in the order of their samples. `version`: the policy's current one, for
    `config.max_age`."""
    credited: dict[str, list[CreditedTrace]] = {}
    for item in group.credited(config.estimator):
        if item.trace.kind in config.kinds and (kept := _bounded(item, config, version)):
            credited.setdefault(item.trace.session_id, []).append(kept)
    ordered = sorted(group.sessions, key=lambda session: (session.result.task_id, session.result.index))
    return [_taken(session.result, credited.get(session.result.session_id, [])) for session in ordered]


def advantage_of(item: CreditedTrace) -> float:
    """The one advantage of a trace, for trainers that take no more: the mean over its trainable tokens, which
    differ only with process rewards."""
    of_tokens = list(compress(item.advantages, item.trace.loss_mask))
    return of_tokens[0] if min(of_tokens) == max(of_tokens) else math.fsum(of_tokens) / len(of_tokens)


def main_trace(traces: Sequence[CreditedTrace]) -> CreditedTrace:
    """The agent's own with the most trainable tokens, the later of equals: the conversation that a user would call
    the session. Without one of the agent, the longest of another kind."""
    numbered = enumerate(traces)
    return max(numbered, key=lambda it: (it[1].trace.kind == "agent", it[1].trace.trainable_tokens, it[0]))[1]


async def run_groups(client: GroupClient, tasks: Sequence[TaskRequest]) -> list[Group]:
    """Submits the tasks and waits for all of their sessions. Gives the groups in the order of the tasks, each with
    the sessions of its task alone. If it is cancelled, so are the sessions that have not ended."""
    if not tasks:
        return []
    named = [with_id(task)[0] for task in tasks]
    submitted: list[TaskStatus] = []
    found: dict[str, Group] = {}
    try:
        submitted = await client.submit_many(named)
        async with aclosing(client.groups(task_ids=[status.task_id for status in submitted])) as groups:
            async for group in groups:
                found[group.group_id] = group
    except asyncio.CancelledError:
        unfinished = [status.task_id for status in submitted if _group_of(status) not in found]
        await asyncio.shield(_cancel(client, unfinished if submitted else [str(task.task_id) for task in named]))
        raise
    missing = [status.task_id for status in submitted if _group_of(status) not in found]
    if missing:
        raise PolarError(f"the server ended without the groups of {', '.join(missing[:5])}: were they cancelled?")
    return [_sessions_of_task(found[_group_of(status)], status.task_id) for status in submitted]


async def run_session(client: GroupClient, config: BridgeConfig, task: TaskRequest) -> SessionTraces:
    """For trainers that ask for one session at a time and compare them themselves. The task has one sample."""
    (group,) = await run_groups(client, [task])
    (session,) = sessions_of(group, config, (await client.policy()).version)
    return session


async def _cancel(client: GroupClient, task_ids: Sequence[str]) -> None:
    for task_id in task_ids:
        with suppress(PolarError):  # a server that is gone cancels nothing
            await client.cancel_task(task_id)


def _group_of(status: TaskStatus) -> str:
    return status.group_id or status.task_id


def _sessions_of_task(group: Group, task_id: str) -> Group:
    sessions = tuple(session for session in group.sessions if session.result.task_id == task_id)
    return Group(group.group_id, sessions, group.cursor)


def _taken(result: SessionResult, traces: list[CreditedTrace]) -> SessionTraces:
    if not traces:
        return SessionTraces(result, left_out=result.untrainable_reason or OUT_OF_BOUNDS)
    main = main_trace(traces)
    return SessionTraces(result, (*(item for item in traces if item is not main), main))


def _bounded(item: CreditedTrace, config: BridgeConfig, version: str) -> CreditedTrace | None:
    kept = within_bounds(item, max_tokens=config.max_tokens, max_age=config.max_age, version=version)
    if kept is None or len(kept.trace.response_ids) == len(item.trace.response_ids):
        return kept
    trace = msgspec.structs.replace(kept.trace, metadata={**kept.trace.metadata, CUT: True})
    return CreditedTrace(trace, kept.advantages)
