"""slime's rollout function with sessions under way while the trainer trains.

`--rollout-function-path polar.trainers.bridges.slime_async.generate_rollout`, with slime's `train_async.py`. It
needs no thread: the rollout server runs the sessions. Each call hands out the groups that finished first, and
leaves as many more behind at the server as `--custom-config-path` says (`polar_batches_ahead`, 1 by default).
slime's own `fully_async_rollout` cannot be used: it fails with several samples for a session.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from polar.credit.group import Group
from polar.errors import PolarError
from polar.runs.event_loop import run_apart
from polar.trainers.bridges import slime
from polar.trainers.bridges.sessions import GroupClient, SessionTraces, sessions_of

UNDER_WAY = "polar_groups_under_way"
"""The attribute of slime's data source that holds them: slime keeps that object, and no other, between calls."""
MOST_LOSSES = 3


class GroupsUnderWay:
    """Prompts whose sessions run at the rollout server. Prompts are groups of slime's samples."""

    def __init__(self, args: Any, data_source: Any) -> None:
        self._args = args
        self._config = slime.config_of(args)
        self._data_source = data_source
        self._prompts: dict[str, list[Any]] = {}
        """By task id."""
        self._lost: dict[int, int] = {}
        """How often a prompt has lost all of its sessions, by its group."""

    async def next_batch(self, client: GroupClient) -> tuple[list[list[Any]], list[list[SessionTraces]]]:
        """The first groups to finish: prompts and sessions, in the order of the data."""
        wanted = self._args.rollout_batch_size
        ahead = wanted * getattr(self._args, "polar_batches_ahead", 1)
        found: list[tuple[list[Any], list[SessionTraces]]] = []
        while len(found) < wanted:
            await self._submit(client, wanted - len(found) + ahead - len(self._prompts))
            found += await self._finished(client, wanted - len(found))
        await self._submit(client, ahead - len(self._prompts))
        found.sort(key=lambda pair: pair[0][0].index)
        return [prompts for prompts, _ in found], [sessions for _, sessions in found]

    async def _submit(self, client: GroupClient, count: int) -> None:
        if count > 0:
            await self._run_again(client, self._data_source.get_samples(count))

    async def _run_again(self, client: GroupClient, prompts: list[list[Any]]) -> None:
        statuses = await client.submit_many(slime.tasks_for(self._config, prompts))
        self._prompts |= {status.task_id: group for status, group in zip(statuses, prompts, strict=True)}

    async def _finished(self, client: GroupClient, count: int) -> list[tuple[list[Any], list[SessionTraces]]]:
        found: list[tuple[list[Any], list[SessionTraces]]] = []
        async with aclosing(client.groups(task_ids=list(self._prompts))) as groups:
            async for group in groups:
                prompts = self._prompts.pop(group.group_id)
                sessions = sessions_of(group, self._config, (await client.policy()).version)
                if any(session.traces for session in sessions):
                    found.append((prompts, sessions))
                else:
                    self._count_loss(prompts, group)
                    await self._run_again(client, [prompts])
                if len(found) == count:
                    break
        return found

    def _count_loss(self, prompts: list[Any], group: Group) -> None:
        number = prompts[0].index
        self._lost[number] = self._lost.get(number, 0) + 1
        if self._lost[number] == MOST_LOSSES:
            reasons = sorted({session.result.untrainable_reason or "out_of_bounds" for session in group.sessions})
            raise PolarError(
                f"prompt {number} has lost all of its sessions {MOST_LOSSES} times ({', '.join(reasons)}); "
                f"see the results of task {group.group_id}"
            )


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    if evaluation:
        return slime.generate_rollout(args, rollout_id, data_source, evaluation)
    under_way: GroupsUnderWay | None = getattr(data_source, UNDER_WAY, None)
    if under_way is None:
        under_way = GroupsUnderWay(args, data_source)
        setattr(data_source, UNDER_WAY, under_way)
    prompts, sessions = run_apart(_next_batch(args, under_way))
    return slime.train_output(prompts, sessions)


async def _next_batch(args: Any, under_way: GroupsUnderWay) -> tuple[list[list[Any]], list[list[SessionTraces]]]:
    async with slime.config_of(args).client() as client:
        return await under_way.next_batch(client)
