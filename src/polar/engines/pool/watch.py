"""The watch over each replica: asks whether it answers, and brings a lost one back."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from polar.back_off import BackOff
from polar.engines.base import Pingable
from polar.engines.pool.admission import Admission, waiting_helps
from polar.engines.pool.choice import ReplicaSet
from polar.engines.pool.options import PoolOptions
from polar.engines.pool.replica import STRIKES, Member, Replica
from polar.errors import EngineError

LONGEST_PAUSE = 6
"""Between two tries to bring a replica back, in intervals of the watch: a try is a whole self-test."""
LOGGER = logging.getLogger("polar.engines.pool")


class ReplicaWatch:
    def __init__(self, replica: Replica, replicas: ReplicaSet, admission: Admission, options: PoolOptions) -> None:
        self._replica = replica
        self._set = replicas
        self._admission = admission
        self._options = options
        self._back_off = BackOff(longest_s=LONGEST_PAUSE * options.check_s)
        self._now = asyncio.Event()
        """Ends a pause of the back-off."""
        self._missed = 0
        """Pings in a row without an answer in time."""

    def try_now(self) -> None:
        self._now.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        replica = self._replica
        while True:
            if replica.member is None:
                await self._bring_back()
            elif replica.why_out and replica.suspected.is_set():
                await self._give_up()
            elif replica.why_out:
                await self._admit_again()
            else:
                await self._keep_asking()

    async def _bring_back(self) -> None:
        replica = self._replica
        replica.starting = True
        try:
            await self._admission.start(replica)
            replica.suspected.clear()
            await self._admission.admit(replica)
            replica.refused = None
        except Exception as error:  # an engine is a plug-in: it may raise anything, and the watch goes on
            replica.why_out = str(error) or type(error).__name__
            replica.refused = None if waiting_helps(error) else error
            await replica.drop()
        finally:
            replica.starting = False
        if replica.why_out:
            self._set.wake_all()  # a start that waits for all learns of it
            await self._pause()
        else:
            self._back_off.reset()

    async def _admit_again(self) -> None:
        """A started replica whose weights were not the current ones."""
        await self._pause()
        replica = self._replica
        if replica.member is None or not replica.why_out or replica.suspected.is_set():
            return
        try:
            await self._admission.admit(replica)
        except EngineError as error:
            replica.take_out(str(error))

    async def _give_up(self) -> None:
        """Ends the engine of a lost replica, and with it the calls that wait for a first token."""
        replica = self._replica
        LOGGER.warning("replica %s gets no calls: %s", replica.name, replica.why_out)
        replica.suspected.clear()
        self._set.wake_all()
        await replica.drop()
        await self._pause()

    async def _keep_asking(self) -> None:
        replica = self._replica
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.check_s):
                await replica.suspected.wait()
        member = replica.member
        if member is None or replica.why_out or not isinstance(member.engine, Pingable):
            return
        try:
            async with asyncio.timeout(self._options.check_timeout_s):
                await member.engine.ping()
            self._missed = 0
        except TimeoutError:
            self._missed += 1
            if self._missed >= STRIKES:
                self._lose(
                    member, f"it has not answered {STRIKES} times within {self._options.check_timeout_s:g} s"
                )
        except EngineError as error:  # also 503, by which a server says that its engine has died
            self._lose(member, str(error))

    def _lose(self, member: Member, why: str) -> None:
        if member is self._replica.member:
            self._missed = 0
            self._replica.take_out(why)

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._back_off.next_s()):
                await self._now.wait()
        self._now.clear()
