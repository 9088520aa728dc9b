"""The client for programs without an event loop: it runs the asynchronous one in a thread and waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from polar.client.client import DEFAULT_URL, PolarClient
from polar.client.retries import Retry
from polar.credit.group import Group
from polar.errors import PolarError
from polar.types import Event, ResultEntry, TaskRequest, TaskStatus

T = TypeVar("T")
P = ParamSpec("P")


def _blocking(
    method: Callable[Concatenate[PolarClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncPolarClient, P], T]:
    """The same method of the synchronous client: parameters, result and documentation stay."""

    @wraps(method)
    def call(self: SyncPolarClient, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._do(method(self._client, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return call


class SyncPolarClient:
    """Use it as `with SyncPolarClient() as client`. Several threads may call its methods at once.

    The methods are those of `PolarClient`."""

    def __init__(
        self, url: str = DEFAULT_URL, token: str | None = None, *, retry: Retry | None = None, ca_file: str = ""
    ) -> None:
        self._client = PolarClient(url, token, retry=retry, ca_file=ca_file)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return self._client.url

    def __enter__(self) -> SyncPolarClient:
        if self._thread is not None:
            raise PolarError("a SyncPolarClient is opened once; make another")
        started: Future[asyncio.AbstractEventLoop] = Future()
        # A daemon thread: a program that does not close its client must be able to end.
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="polar-client", daemon=True
        )
        self._thread.start()
        self._loop = started.result()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the requests that other threads wait for. May be called twice."""
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    submit = _blocking(PolarClient.submit)
    task = _blocking(PolarClient.task)
    tasks = _blocking(PolarClient.tasks)
    session = _blocking(PolarClient.session)
    sessions = _blocking(PolarClient.sessions)
    lease = _blocking(PolarClient.lease)
    group = _blocking(PolarClient.group)
    result_page = _blocking(PolarClient.result_page)
    trajectory = _blocking(PolarClient.trajectory)
    upload = _blocking(PolarClient.upload)
    cancel_session = _blocking(PolarClient.cancel_session)
    cancel_task = _blocking(PolarClient.cancel_task)
    cancel_group = _blocking(PolarClient.cancel_group)
    policy = _blocking(PolarClient.policy)
    pause = _blocking(PolarClient.pause)
    drain = _blocking(PolarClient.drain)
    resume = _blocking(PolarClient.resume)
    set_policy_version = _blocking(PolarClient.set_policy_version)
    nodes = _blocking(PolarClient.nodes)
    drain_node = _blocking(PolarClient.drain_node)
    report_training = _blocking(PolarClient.report_training)
    training = _blocking(PolarClient.training)
    training_page = _blocking(PolarClient.training_page)
    training_runs = _blocking(PolarClient.training_runs)
    overview = _blocking(PolarClient.overview)
    session_list = _blocking(PolarClient.session_list)
    log = _blocking(PolarClient.log)
    tokens = _blocking(PolarClient.tokens)
    rotate_token = _blocking(PolarClient.rotate_token)
    actions = _blocking(PolarClient.actions)
    storage = _blocking(PolarClient.storage)
    gc = _blocking(PolarClient.gc)

    def submit_many(self, tasks: Iterable[TaskRequest | Mapping[str, Any]]) -> list[TaskStatus]:
        """See `PolarClient.submit_many`. Reads `tasks` in the calling thread."""
        return self._do(self._client.submit_many(list(tasks)))

    def results(
        self,
        *,
        task_ids: Collection[str] | None = None,
        group_id: str | None = None,
        after: int = 0,
        allow_gap: bool = False,
    ) -> Generator[ResultEntry]:
        """Results as they come; see `PolarClient.results`."""
        wanted: dict[str, Any] = {"task_ids": task_ids, "group_id": group_id, "after": after}
        return self._each(self._client.results(**wanted, allow_gap=allow_gap))

    def groups(
        self,
        *,
        task_ids: Collection[str] | None = None,
        group_ids: Collection[str] | None = None,
        after: int = 0,
        allow_gap: bool = False,
    ) -> Generator[Group]:
        """Whole groups as they are done; see `PolarClient.groups`."""
        wanted: dict[str, Any] = {"task_ids": task_ids, "group_ids": group_ids, "after": after}
        return self._each(self._client.groups(**wanted, allow_gap=allow_gap))

    def events(self, after: int = 0) -> Generator[Event]:
        """Every change after a cursor, without end."""
        return self._each(self._client.events(after))

    async def _serve(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        """Ends when the client is closed; `asyncio.run` then cancels what is still under way."""
        try:
            await self._client.__aenter__()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(asyncio.get_running_loop())
        try:
            await self._stop.wait()
        finally:
            await self._client.__aexit__()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise PolarError("the client is not open; use it as `with SyncPolarClient() as client`")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError as error:
            raise PolarError("the client was closed while this request was under way") from error
        finally:
            future.cancel()  # after a Ctrl-C here the work there must end; a finished future ignores it

    def _each(self, source: AsyncGenerator[T]) -> Generator[T]:
        try:
            while (found := self._do(_next(source))) is not None:
                yield found
        finally:
            with suppress(PolarError):  # the client is closed, and the generator with it
                self._do(_close(source))


async def _next(source: AsyncGenerator[T]) -> T | None:
    return await anext(source, None)


async def _close(source: AsyncGenerator[Any]) -> None:
    await source.aclose()
