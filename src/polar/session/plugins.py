"""Calls plug-ins, each in a thread of its own, so that one that blocks or exits only affects its session.

Builders, evaluators and harness classes are code of the task's author. A coroutine runs in an event loop of its
thread, never in the node's; it reaches the session's runtime through `NodeRuntime`. A thread cannot be ended from
outside: one that does not return within its stage's budget, or after a cancel, is left running, and the log names
it.
"""

from __future__ import annotations

import _thread
import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from polar import registry
from polar.errors import PolarError, SessionError, boundary, failure_of
from polar.runtimes.base import Runtime
from polar.types import Failure, Spec

T = TypeVar("T")
P = ParamSpec("P")

CANCEL_S = 2.0
"""How long a cancelled coroutine may take to end before its thread is left running."""

LOGGER = logging.getLogger("polar.session")


class WrongType(PolarError):
    """A plug-in returned a value of the wrong type."""


async def call(where: str, function: Callable[P, T | Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls `function`, and awaits what it returns if that is awaitable. Whatever it raises, `SystemExit` and its
    own cancellation included, becomes a `SessionError` with this `where`."""
    work = _Work(where, lambda: function(*args, **kwargs))
    try:
        await asyncio.wait([work.done])
    except asyncio.CancelledError:
        await work.cancel()
        raise
    value, error = work.done.result()
    if isinstance(error, SessionError):
        raise error
    if error is not None:
        raise SessionError(_failure(where, error)) from error
    return value


async def call_foreign(
    kind: str, spec: Spec, function: Callable[P, T | Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Like `call`, but without a thread for plug-ins that come with Polar: those neither block nor exit."""
    if not registry.is_ours(kind, spec):
        return await call(kind, function, *args, **kwargs)
    with boundary(kind):
        value: Any = function(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value


def runtime_for(kind: str, spec: Spec, runtime: Runtime) -> Runtime:
    """The session's runtime in the form that this plug-in can use."""
    ours = registry.is_ours(kind, spec)
    return runtime if ours else cast("Runtime", NodeRuntime(runtime, asyncio.get_running_loop()))


def expect(kind: type[T], value: object, what: str) -> T:
    """Returns the value, or raises `WrongType`."""
    if not isinstance(value, kind):
        raise WrongType(f"{what} returned {_shown(value)}; it must return a {kind.__name__}")
    return value


class _Work:
    """One call in its thread. Only the node's loop uses `done`."""

    def __init__(self, where: str, function: Callable[[], Any]) -> None:
        self.done: asyncio.Future[tuple[Any, BaseException | None]] = asyncio.get_running_loop().create_future()
        self._where = where
        self._function = function
        self._node_loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._coroutine: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._cancelled = False
        # As in `runtimes/host/threads.py`: the interpreter waits neither for its start nor for its end.
        _thread.start_new_thread(copy_context().run, (self._run,))

    async def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._coroutine is not None:
                loop, task = self._coroutine
                loop.call_soon_threadsafe(task.cancel)
        if self._coroutine is not None:
            await asyncio.wait([self.done], timeout=CANCEL_S)
        if not self.done.done():
            LOGGER.warning("%s: a plug-in did not return; it is left running in its thread", self._where)

    def _run(self) -> None:
        value, error = None, None
        try:
            value = self._function()
            if inspect.isawaitable(value):
                value = asyncio.run(self._awaited(value))
        except BaseException as raised:
            error = raised
        try:
            self._node_loop.call_soon_threadsafe(self._settle, value, error)
        except RuntimeError:  # the node has ended
            LOGGER.info("%s: a plug-in returned after the node had ended", self._where)

    async def _awaited(self, awaitable: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._coroutine = asyncio.get_running_loop(), task
            if self._cancelled:
                task.cancel()
        try:
            return await awaitable
        finally:
            with self._lock:
                self._coroutine = None

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if not self.done.done():
            self.done.set_result((value, error))


class NodeRuntime:
    """A session's runtime for code in another thread: its coroutines run in the node's event loop."""

    def __init__(self, runtime: Runtime, loop: asyncio.AbstractEventLoop) -> None:
        self._runtime = runtime
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._runtime, name)
        return self._on_node(found) if inspect.iscoroutinefunction(found) else found

    def _on_node(self, method: Callable[P, Any]) -> Callable[P, Any]:
        @wraps(method)
        async def calling(*args: P.args, **kwargs: P.kwargs) -> Any:
            running = asyncio.run_coroutine_threadsafe(method(*args, **kwargs), self._loop)
            return await asyncio.wrap_future(running)

        return calling


def _failure(where: str, error: BaseException) -> Failure:
    if isinstance(error, SystemExit):
        return Failure(where=where, type="SystemExit", message=f"it called sys.exit({error.code!r})")
    return failure_of(where, error)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
