"""The same client for programs without an event loop: one runs in a thread of its own and is waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Collection, Coroutine, Generator, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from polar.client.client import DEFAULT_URL, PolarClient
from polar.client.results import PAGE
from polar.client.retries import Retry
from polar.errors import PolarError
from polar.types import (
    Drain,
    Event,
    Lease,
    NodeStatus,
    Policy,
    ResultEntry,
    ResultPage,
    SessionStatus,
    SessionUpload,
    Stage,
    TaskRequest,
    TaskStatus,
    Trajectory,
)

T = TypeVar("T")


class SyncPolarClient:
    """Use it as `with SyncPolarClient() as client`. Its methods may be called from several threads at once."""

    def __init__(self, url: str = DEFAULT_URL, token: str | None = None, *, retry: Retry | None = None) -> None:
        self._client = PolarClient(url, token, retry=retry)
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
        # A daemon: a program that ends without closing its client shall end.
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="polar-client", daemon=True
        )
        self._thread.start()
        self._loop = started.result()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Breaks off what other threads still wait for; may be called twice."""
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def submit(self, task: TaskRequest | Mapping[str, Any]) -> TaskStatus:
        return self._do(self._client.submit(task))

    def submit_many(self, tasks: Iterable[TaskRequest | Mapping[str, Any]]) -> list[TaskStatus]:
        return self._do(self._client.submit_many(list(tasks)))

    def task(self, task_id: str) -> TaskStatus:
        return self._do(self._client.task(task_id))

    def tasks(self, *, limit: int | None = None) -> list[TaskStatus]:
        return self._do(self._client.tasks(limit=limit))

    def session(self, session_id: str) -> SessionStatus:
        return self._do(self._client.session(session_id))

    def sessions(
        self, task_id: str | None = None, *, stage: Stage | None = None, limit: int | None = None
    ) -> list[SessionStatus]:
        return self._do(self._client.sessions(task_id, stage=stage, limit=limit))

    def lease(self, session_id: str) -> Lease:
        return self._do(self._client.lease(session_id))

    def results(
        self, *, task_ids: Collection[str] | None = None, group_id: str | None = None, after: int = 0
    ) -> Generator[ResultEntry]:
        """Results as they come; see `PolarClient.results`."""
        return self._each(self._client.results(task_ids=task_ids, group_id=group_id, after=after))

    def result_page(
        self,
        *,
        after: int = 0,
        limit: int = PAGE,
        wait_s: float = 0.0,
        task_id: str | None = None,
        group_id: str | None = None,
    ) -> ResultPage:
        page = self._client.result_page(
            after=after, limit=limit, wait_s=wait_s, task_id=task_id, group_id=group_id
        )
        return self._do(page)

    def trajectory(self, session_id: str) -> Trajectory:
        return self._do(self._client.trajectory(session_id))

    def upload(self, session_id: str) -> SessionUpload:
        return self._do(self._client.upload(session_id))

    def cancel_session(self, session_id: str) -> int:
        return self._do(self._client.cancel_session(session_id))

    def cancel_task(self, task_id: str) -> int:
        return self._do(self._client.cancel_task(task_id))

    def cancel_group(self, group_id: str) -> int:
        return self._do(self._client.cancel_group(group_id))

    def policy(self) -> Policy:
        return self._do(self._client.policy())

    def pause(self, *, wait: bool = False, timeout_s: float | None = None) -> Policy:
        return self._do(self._client.pause(wait=wait, timeout_s=timeout_s))

    def drain(self, *, wait_s: float = 0.0) -> Drain:
        return self._do(self._client.drain(wait_s=wait_s))

    def resume(self) -> Policy:
        return self._do(self._client.resume())

    def set_policy_version(self, version: str | int) -> Policy:
        return self._do(self._client.set_policy_version(version))

    def nodes(self) -> list[NodeStatus]:
        return self._do(self._client.nodes())

    def events(self, after: int = 0) -> Generator[Event]:
        return self._each(self._client.events(after))

    async def _serve(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        """Ends when the client is closed; `asyncio.run` then cancels whatever is still under way."""
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
            raise PolarError("the client was closed while this waited for the server") from error
        finally:
            future.cancel()  # a Ctrl-C here must end the work there; what is done stays done

    def _each(self, source: AsyncGenerator[T]) -> Generator[T]:
        try:
            while (found := self._do(_next(source))) is not None:
                yield found
        finally:
            with suppress(PolarError):  # closed already, and the generator with it
                self._do(_close(source))


async def _next(source: AsyncGenerator[T]) -> T | None:
    return await anext(source, None)


async def _close(source: AsyncGenerator[Any]) -> None:
    await source.aclose()
