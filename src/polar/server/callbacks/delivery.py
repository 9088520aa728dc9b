"""Sends the callbacks that are due.

A target that is down, slow or hostile takes few of the connections, none of them for longer than `TIMEOUT_S`, and
only the status of its answer is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import aiohttp

from polar.server.callbacks.targets import CallbackTargets, CheckedResolver, RefusedTarget, refusal_in
from polar.server.long_poll import fires_within
from polar.server.records import callbacks
from polar.server.records.callbacks import Callback
from polar.server.state import State
from polar.store.database import StoreError

AT_ONCE = 8
AT_ONCE_PER_TARGET = 4
TIMEOUT_S = 10.0
LONGEST_NAP_S = 1.0

log = logging.getLogger("polar.server")


class CallbackDelivery:
    def __init__(self, state: State) -> None:
        self._state = state
        self._targets = CallbackTargets(state.config)
        self._under_way: dict[str, Callback] = {}
        self._failing: set[str] = set()
        """Targets whose last try failed; they get one connection until they answer again."""

    async def run(self) -> None:
        signal = self._state.signals["callbacks"]
        async with _http(self._targets) as http, asyncio.TaskGroup() as group:
            while not signal.closed:
                fired = signal.listen()
                try:
                    await self._start_due(http, group)
                    await fires_within(fired, await self._nap_s())
                except StoreError as error:
                    log.warning("callbacks are delayed: %s", error)
                    await asyncio.sleep(LONGEST_NAP_S)

    async def _start_due(self, http: aiohttp.ClientSession, group: asyncio.TaskGroup) -> None:
        while len(self._under_way) < AT_ONCE:
            busy, full = list(self._under_way), self._full_targets()
            callback = await self._state.read(callbacks.next_due, self._state.clock(), busy, full)
            if callback is None:
                return
            self._under_way[callback.session_id] = callback
            group.create_task(self._deliver(http, callback))

    def _full_targets(self) -> list[str]:
        busy = Counter(callback.target for callback in self._under_way.values())
        return [
            target
            for target, count in busy.items()
            if count >= (1 if target in self._failing else AT_ONCE_PER_TARGET)
        ]

    async def _deliver(self, http: aiohttp.ClientSession, callback: Callback) -> None:
        try:
            problem = await send(http, callback, self._targets)
            if problem is None:
                self._failing.discard(callback.target)
                await self._state.change(callbacks.delivered, callback)
            else:
                self._failing.add(callback.target)
                if await self._state.change(callbacks.failed, callback, problem):
                    _log_given_up(callback, problem)
        except RefusedTarget as refusal:
            await self._give_up(callback, str(refusal))
        except StoreError as error:  # it stays due; the receiver recognises the repetition by its key
            _log_not_stored(callback, error)
        finally:
            del self._under_way[callback.session_id]
            self._state.signals["callbacks"].fire()  # a connection is free

    async def _give_up(self, callback: Callback, problem: str) -> None:
        """Without another try: only the operator can allow an address."""
        try:
            await self._state.change(callbacks.give_up, callback, problem)
            _log_given_up(callback, problem)
        except StoreError as error:
            _log_not_stored(callback, error)

    async def _nap_s(self) -> float:
        """Until the next try is due."""
        now = self._state.clock()
        due = await self._state.read(callbacks.next_due_at, now)
        return LONGEST_NAP_S if due is None else min(LONGEST_NAP_S, due - now)


def _log_given_up(callback: Callback, problem: str) -> None:
    log.warning("session %s: giving up its callback: %s", callback.session_id, problem)


def _log_not_stored(callback: Callback, error: StoreError) -> None:
    log.warning("session %s: its callback's outcome was not stored: %s", callback.session_id, error)


def _http(targets: CallbackTargets) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=AT_ONCE, force_close=True, resolver=CheckedResolver(targets), use_dns_cache=False
        ),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


async def send(http: aiohttp.ClientSession, callback: Callback, targets: CallbackTargets) -> str | None:
    """What went wrong, or None. The URL may hold a secret, so no message contains it. Raises `RefusedTarget` for
    an address that callbacks may not go to."""
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": callback.key,
        "X-Polar-Session": callback.session_id,
        "X-Polar-Task": callback.task_id,
    }
    try:
        targets.check_literal(callback.url)
        answer = await http.post(callback.url, data=callback.body.encode(), headers=headers, allow_redirects=False)
        answer.close()  # unread: the body may be endless
    except TimeoutError:
        return f"no answer within {TIMEOUT_S:g} s"
    except Exception as error:  # a hostile answer may raise anything, and must not stop other callbacks
        if refusal := refusal_in(error):
            raise refusal from None
        return f"{type(error).__name__}: {str(error).replace(callback.url, 'the callback_url')}"
    return None if 200 <= answer.status < 300 else f"answered with status {answer.status}"
