"""The asynchronous client: one method for each request to the rollout server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from functools import cache
from typing import Any, Literal, TypeVar, cast

import msgspec
from pydantic import TypeAdapter, ValidationError

from polar.client.bodies import batches, same_task, selection, to_json, with_id
from polar.client.draining import wait_for_drain
from polar.client.events import follow_events
from polar.client.groups import GROUPS_PER_PAGE, follow_groups
from polar.client.results import PAGE, follow_results
from polar.client.retries import Retry, ServerError
from polar.client.transport import Request, Transport
from polar.credit.group import Group
from polar.types import (
    ActionPage,
    CancelReply,
    Drain,
    Event,
    GcReport,
    GcRequest,
    GroupPage,
    GroupStatus,
    Lease,
    NodeDrain,
    NodeStatus,
    Policy,
    PolicyChange,
    ResultEntry,
    ResultPage,
    Selection,
    SessionStatus,
    SessionUpload,
    Stage,
    StorageStatus,
    TaskRequest,
    TaskStatus,
    TokenKind,
    TokenRotation,
    TokenStatus,
    TrainingPage,
    TrainingPoint,
    TrainingRun,
    Trajectory,
    is_id,
)
from polar.types.codec import MSGPACK
from polar.types.packed import PACKED, unpack_upload, unpacked
from polar.types.service.overview import LogPage, Overview, SessionFilter, SessionListPage
from polar.types.service.training import MAX_POINTS

DEFAULT_URL = "http://127.0.0.1:8700"
SUBMISSIONS_AT_ONCE = 8

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class PolarClient:
    """Use it as `async with PolarClient() as client`. `token` defaults to the user's control token, `ca_file` to
    POLAR_CA_FILE, else the CAs of the system."""

    def __init__(
        self, url: str = DEFAULT_URL, token: str | None = None, *, retry: Retry | None = None, ca_file: str = ""
    ) -> None:
        self._transport = Transport(url, token, retry or Retry(), ca_file)

    @property
    def url(self) -> str:
        return self._transport.url

    async def __aenter__(self) -> PolarClient:
        await self._transport.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    async def submit(self, task: TaskRequest | Mapping[str, Any]) -> TaskStatus:
        """Submits a task. Its id is fixed here, so a submission whose reply was lost can be repeated."""
        request, generated = with_id(task)
        try:
            return await self._ask("POST", "/v1/tasks", TaskStatus, body=to_json(request))
        except ServerError as error:
            # After a repetition the task may be this one; before that, the id belongs to another task.
            if error.status != 409 or error.attempts == 1:
                raise
            known = await self.task(str(request.task_id))
            if not generated and not same_task(request, (await self.lease(known.session_ids[0])).task):
                raise
            return known

    async def submit_many(self, tasks: Iterable[TaskRequest | Mapping[str, Any]]) -> list[TaskStatus]:
        """In the order given. Raises the first refusal; tasks submitted before it stay."""
        room = asyncio.Semaphore(SUBMISSIONS_AT_ONCE)

        async def submit(task: TaskRequest | Mapping[str, Any]) -> TaskStatus:
            async with room:
                return await self.submit(task)

        checked = [with_id(task)[0] for task in tasks]
        try:
            async with asyncio.TaskGroup() as group:
                submitted = [group.create_task(submit(task)) for task in checked]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in submitted]

    async def task(self, task_id: str) -> TaskStatus:
        return await self._ask("GET", _path("tasks", task_id), TaskStatus)

    async def tasks(self, *, limit: int | None = None) -> list[TaskStatus]:
        """Newest first, without the ids of their sessions."""
        return await self._ask("GET", "/v1/tasks", list[TaskStatus], params={"limit": limit})

    async def session(self, session_id: str) -> SessionStatus:
        return await self._ask("GET", _path("sessions", session_id), SessionStatus)

    async def sessions(
        self, task_id: str | None = None, *, stage: Stage | None = None, limit: int | None = None
    ) -> list[SessionStatus]:
        """Without their results."""
        params = {"task_id": task_id, "stage": stage.value if stage else None, "limit": limit}
        return await self._ask("GET", "/v1/sessions", list[SessionStatus], params=params)

    async def lease(self, session_id: str) -> Lease:
        """The session in its current stage, with its task."""
        return await self._ask("GET", _path("sessions", session_id, "lease"), Lease)

    async def results(
        self,
        *,
        task_ids: Collection[str] | None = None,
        group_id: str | None = None,
        after: int = 0,
        allow_gap: bool = False,
    ) -> AsyncGenerator[ResultEntry]:
        """Results in the order in which they were recorded, each as soon as it exists.

        Ends after the last result of the tasks, or of the group's tasks; with neither it is endless. To continue
        later or in another process, pass the `cursor` of the last entry as `after`. If retention has removed
        results after it, that is a `ServerError` with status 410, unless `allow_gap`."""
        wanted = selection(task_ids, None if group_id is None else [group_id], PAGE, allow_gap)

        async def page(cursor: int) -> ResultPage:
            return await self._select("/v1/results/query", ResultPage, wanted, cursor)

        async with aclosing(follow_results(page, after)) as entries:
            async for entry in entries:
                yield entry

    async def groups(
        self,
        *,
        task_ids: Collection[str] | None = None,
        group_ids: Collection[str] | None = None,
        after: int = 0,
        allow_gap: bool = False,
    ) -> AsyncGenerator[Group]:
        """Whole groups with their traces, each as soon as every session of its tasks has its result.

        Ends after the last group of the tasks and groups given; with neither it is endless. To continue later or
        in another process, pass the `cursor` of the last group as `after`. A group that gains a task after it was
        done comes again, whole, when that task is done. `allow_gap`: as in `results`, and a session whose traces
        retention has removed comes with its result alone; else that is a `ServerError` with status 410 too."""
        wanted = selection(task_ids, group_ids, GROUPS_PER_PAGE, allow_gap)

        async def page(cursor: int) -> GroupPage:
            return await self._select("/v1/groups/query", GroupPage, wanted, cursor)

        async with aclosing(follow_groups(page, self.trajectory, after, allow_gap=allow_gap)) as found:
            async for group in found:
                yield group

    async def group(self, group_id: str) -> GroupStatus:
        return await self._ask("GET", _path("groups", group_id), GroupStatus)

    async def result_page(
        self,
        *,
        after: int = 0,
        limit: int = PAGE,
        wait_s: float = 0.0,
        task_id: str | None = None,
        group_id: str | None = None,
        allow_gap: bool = False,
    ) -> ResultPage:
        """One request of `results`: the results after a cursor; waits up to `wait_s` for the first."""
        params = {"after": after, "limit": limit, "wait_s": wait_s, "task_id": task_id, "group_id": group_id}
        params["allow_gap"] = str(allow_gap)
        return await self._ask("GET", "/v1/results", ResultPage, params=params, wait_s=wait_s)

    async def trajectory(self, session_id: str) -> Trajectory:
        """The session's traces; a 404 if it has none, or not yet."""
        return await self._fetch(_path("sessions", session_id, "trajectory"), unpacked)

    async def upload(self, session_id: str) -> SessionUpload:
        """All that the session's node uploaded: result, trajectory, calls, and files up to its limit."""
        return await self._fetch(_path("sessions", session_id, "upload"), unpack_upload)

    async def cancel_session(self, session_id: str) -> int:
        """Returns the number of sessions that had not ended, as do the next two."""
        return await self._cancel("sessions", session_id)

    async def cancel_task(self, task_id: str) -> int:
        return await self._cancel("tasks", task_id)

    async def cancel_group(self, group_id: str) -> int:
        return await self._cancel("groups", group_id)

    async def policy(self) -> Policy:
        return await self._ask("GET", "/v1/policy", Policy)

    async def pause(self, *, wait: bool = False, timeout_s: float | None = None) -> Policy:
        """New calls wait until `resume`; those under way run to their end.

        With `wait` it returns when every live node has paused and no generation is under way. If that takes longer
        than `timeout_s` it raises `NotDrained`, and generation stays paused."""
        policy = await self._change_policy(PolicyChange(paused=True))
        return await wait_for_drain(self.drain, timeout_s) if wait else policy

    async def drain(self, *, wait_s: float = 0.0) -> Drain:
        """The progress of a pause; waits up to `wait_s` until it is complete or resumed."""
        return await self._ask("GET", "/v1/policy/drain", Drain, params={"wait_s": wait_s}, wait_s=wait_s)

    async def resume(self) -> Policy:
        return await self._change_policy(PolicyChange(paused=False))

    async def set_policy_version(self, version: str | int) -> Policy:
        """Recorded with every call that begins from now on. Does not pause or resume."""
        return await self._change_policy(PolicyChange(version=str(version)))

    async def nodes(self) -> list[NodeStatus]:
        return await self._ask("GET", "/v1/nodes", list[NodeStatus])

    async def drain_node(self, node_id: str, *, draining: bool = True) -> None:
        """The node gets no more sessions, and those that it has end as usual. `draining=False` takes it back."""
        body = NodeDrain(draining=draining).model_dump_json().encode()
        await self._transport.send(Request("POST", _path("nodes", node_id, "drain"), body=body))

    async def report_training(
        self, run_id: str, points: Iterable[TrainingPoint | Mapping[str, Any]]
    ) -> TrainingRun | None:
        """Adds to the curves of a training run. A point that is reported again changes nothing; with other metrics
        it replaces the older of its phase and step. None: there were no points."""
        path, run = _path("training", run_id, "points"), None
        for batch in batches(points):
            run = await self._ask("POST", path, TrainingRun, body=batch.model_dump_json().encode())
        return run

    async def training(self, run_id: str, *, after: int = 0) -> list[TrainingPoint]:
        """All points of a run after a cursor, in the order in which they came."""
        points: list[TrainingPoint] = []
        while (page := await self.training_page(run_id, after=after)).points:
            points += page.points
            after = page.cursor
        return points

    async def training_page(self, run_id: str, *, after: int = 0, limit: int = MAX_POINTS) -> TrainingPage:
        """One request of `training`, with the cursor to continue from."""
        params = {"after": after, "limit": limit}
        return await self._ask("GET", _path("training", run_id), TrainingPage, params=params)

    async def training_runs(self) -> list[TrainingRun]:
        """The last updated first."""
        return await self._ask("GET", "/v1/training", list[TrainingRun])

    async def storage(self) -> StorageStatus:
        return await self._ask("GET", "/v1/storage", StorageStatus)

    async def gc(self, wanted: GcRequest | None = None) -> GcReport:
        """Removes what is old; `complete` is false if there is more. Without an argument it only counts."""
        body = (wanted or GcRequest()).model_dump_json().encode()
        return await self._ask("POST", "/v1/storage/gc", GcReport, body=body)

    async def overview(self) -> Overview:
        """The state of the service at a glance; see `polar top`."""
        return await self._ask("GET", "/v1/overview", Overview)

    async def session_list(
        self, wanted: SessionFilter | None = None, *, before: int | None = None, limit: int | None = None
    ) -> SessionListPage:
        """Sessions with what a person wants to know of each, the newest submitted first. To continue, pass the
        page's `before`."""
        chosen = {} if wanted is None else wanted.model_dump(mode="json", exclude_none=True)
        params = {name: str(value) for name, value in chosen.items()} | {"before": before, "limit": limit}
        return await self._ask("GET", "/v1/overview/sessions", SessionListPage, params=params)

    async def log(self, *, after: int | None = None, limit: int | None = None) -> LogPage:
        """Lines of the service's log: the newest, or those after a cursor."""
        return await self._ask("GET", "/v1/overview/log", LogPage, params={"after": after, "limit": limit})

    async def tokens(self) -> list[TokenStatus]:
        """The service tokens by fingerprint, also those that have ended."""
        return await self._ask("GET", "/v1/tokens", list[TokenStatus])

    async def rotate_token(self, kind: TokenKind, rotation: TokenRotation) -> TokenStatus:
        """The server gets the hash of the new token; see `polar token rotate`."""
        body = rotation.model_dump_json().encode()
        return await self._ask("POST", f"/v1/tokens/{kind}/rotate", TokenStatus, body=body)

    async def actions(
        self, *, after: int | None = None, before: int | None = None, limit: int | None = None
    ) -> ActionPage:
        """The record of control actions: the newest, also of those before a cursor, or the first after one."""
        params = {"after": after, "before": before, "limit": limit}
        return await self._ask("GET", "/v1/actions", ActionPage, params=params)

    def events(self, after: int = 0) -> AsyncGenerator[Event]:
        """Every change after a cursor, endless."""
        return follow_events(self._transport, after)

    async def _select(self, path: str, kind: type[T], wanted: Selection, after: int) -> T:
        body = wanted.model_copy(update={"after": after}).model_dump_json().encode()
        return await self._ask("POST", path, kind, body=body, wait_s=wanted.wait_s)

    async def _cancel(self, kind: Literal["sessions", "tasks", "groups"], name: str) -> int:
        return (await self._ask("POST", _path(kind, name, "cancel"), CancelReply)).cancelled

    async def _change_policy(self, wanted: PolicyChange) -> Policy:
        body = wanted.model_dump_json(exclude_none=True).encode()
        return await self._ask("PUT", "/v1/policy", Policy, body=body)

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        params: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        wait_s: float = 0.0,
    ) -> T:
        request = Request(method, path, params or {}, body, silence_s=Request.silence_s + wait_s)
        payload = await self._transport.send(request)
        try:
            return cast("T", _adapter(kind).validate_json(payload))
        except ValidationError as error:
            raise self._transport.unreadable(path, error) from error

    async def _fetch(self, path: str, read: Callable[[bytes], S]) -> S:
        payload = await self._transport.send(Request("GET", path, accept=f"{PACKED}, {MSGPACK};q=0.5"))
        try:
            return read(payload)
        except (msgspec.MsgspecError, ValueError, KeyError) as error:
            raise self._transport.unreadable(path, error) from error


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _path(kind: str, name: str, *rest: str) -> str:
    """Refuses what is not an id: it would change the path."""
    if not is_id(name):
        raise ServerError(f"{name!r} is not a valid id of one of the {kind}", status=404)
    return "/".join(("/v1", kind, name, *rest))
