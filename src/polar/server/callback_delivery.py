"""Sends the callbacks that are owed.

A target that is down, slow or hostile costs few places, none for longer than `TIMEOUT_S`, and no more than a look
at the status of its answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import aiohttp

from polar.server import callbacks
from polar.server.callbacks import Owed
from polar.server.state import State
from polar.store.database import StoreError

AT_ONCE = 8
AT_ONCE_PER_TARGET = 4
TIMEOUT_S = 10.0
LONGEST_NAP_S = 1.0

log = logging.getLogger("polar.server")


class Delivery:
    def __init__(self, state: State) -> None:
        self._state = state
        self._under_way: dict[str, Owed] = {}
        self._failing: set[str] = set()
        """Targets whose last try failed: one place is enough to see whether they are back."""
        self._free = asyncio.Event()

    async def run(self) -> None:
        bell = self._state.bells["callbacks"]
        async with _http() as http, asyncio.TaskGroup() as group:
            while not bell.silenced:
                rung = bell.listen()
                self._free.clear()
                try:
                    await self._start_due(http, group)
                    await self._nap(rung)
                except StoreError as error:
                    log.warning("callbacks wait: %s", error)
                    await asyncio.sleep(LONGEST_NAP_S)

    async def _start_due(self, http: aiohttp.ClientSession, group: asyncio.TaskGroup) -> None:
        while len(self._under_way) < AT_ONCE:
            busy, full = list(self._under_way), self._full_targets()
            owed = await self._state.read(callbacks.next_owed, self._state.clock(), busy, full)
            if owed is None:
                return
            self._under_way[owed.session_id] = owed
            group.create_task(self._deliver(http, owed))

    def _full_targets(self) -> list[str]:
        busy = Counter(owed.target for owed in self._under_way.values())
        return [
            target
            for target, count in busy.items()
            if count >= (1 if target in self._failing else AT_ONCE_PER_TARGET)
        ]

    async def _deliver(self, http: aiohttp.ClientSession, owed: Owed) -> None:
        try:
            problem = await send(http, owed)
            if problem is None:
                self._failing.discard(owed.target)
                await self._state.change(callbacks.delivered, owed)
            else:
                self._failing.add(owed.target)
                if await self._state.change(callbacks.failed, owed, problem):
                    log.warning("the callback of session %s is given up: %s", owed.session_id, problem)
        except StoreError as error:  # it stays owed, and the key tells the receiver that it comes again
            log.warning("the callback of session %s could not be noted: %s", owed.session_id, error)
        finally:
            del self._under_way[owed.session_id]
            self._free.set()

    async def _nap(self, rung: asyncio.Event) -> None:
        """Until a result is owed, a place is free, or the next try may be due."""
        now = self._state.clock()
        due = await self._state.read(callbacks.next_due, now)
        nap_s = LONGEST_NAP_S if due is None else min(LONGEST_NAP_S, due - now)
        waits = [asyncio.ensure_future(event.wait()) for event in (rung, self._free)]
        try:
            await asyncio.wait(waits, timeout=nap_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def _http() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=AT_ONCE, force_close=True),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


async def send(http: aiohttp.ClientSession, owed: Owed) -> str | None:
    """What went wrong, or None. The address may hold a secret, so it stands in no message."""
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": owed.key,
        "X-Polar-Session": owed.session_id,
        "X-Polar-Task": owed.task_id,
    }
    try:
        answer = await http.post(owed.url, data=owed.body.encode(), headers=headers, allow_redirects=False)
        answer.close()  # unread: a body may have no end
    except TimeoutError:
        return f"no answer within {TIMEOUT_S:g} s"
    except Exception as error:  # whatever a hostile answer makes of the client concerns this callback alone
        return f"{type(error).__name__}: {str(error).replace(owed.url, 'the callback_url')}"
    return None if 200 <= answer.status < 300 else f"answered with status {answer.status}"
