"""The rollout server as the source of a node's sessions.

Sessions are leased by long-poll as the pipeline has room, kept by heartbeats, and their results uploaded until
the server has taken or refused them. While the server is away they go on running. A node that is told to stop
breaks its sessions off and hands them back, so they run again elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from polar.node.back_off import BackOff
from polar.node.lease_table import Fate, Held, Holdings
from polar.node.uplink import NotRegistered, Refused, ServerAway, Unacceptable, Uplink
from polar.node.upload import bare_upload, upload_of
from polar.types import (
    Call,
    EarlierAttempt,
    HandBack,
    Heartbeat,
    HeartbeatReply,
    Lease,
    LeaseRequest,
    Policy,
    Registration,
    SessionResult,
    Sickness,
    Stage,
    Trajectory,
)

LEASE_WAIT_S = 20.0
SHORT_WAIT_S = 0.5
"""While the next attempt of a session waits for its earlier one to end here."""
LEAVE_S = 5.0
MAX_UNSENT = 64
"""Results the server has not taken yet; with so many, nothing new is leased."""

log = logging.getLogger("polar.node")


@dataclass(frozen=True)
class Controls:
    """What the source does to the node that runs its sessions."""

    cancel: Callable[[str], bool]
    """Breaks a session off; it is reported all the same."""
    set_policy: Callable[[Policy], None]
    generating: Callable[[], int]
    """How many generations are under way."""
    calls: Callable[[str], Awaitable[list[Call]]]
    sickness: Callable[[], Sickness | None] = lambda: None
    """Why the node leases nothing for now."""


class ServerSource:
    """A `ReturningSource` and a `Watcher`: `attach` it before the first lease, run `beat` beside the pipeline."""

    patient = True

    def __init__(self, uplink: Uplink, registration: Registration, *, give_up_s: float = 20.0) -> None:
        self._uplink = uplink
        self._registration = registration
        self._give_up_s = give_up_s
        """How long a node that stops tries to reach a server that is away."""
        self._controls: Controls | None = None
        self._held = Holdings()
        self._unsent = 0
        self._sent = asyncio.Event()
        self._policy: Policy | None = None
        """The newest the server has told of since the node is registered."""
        self._beat_s = 1.0
        self._news = asyncio.Event()
        self._away = False
        self._stopping = asyncio.Event()
        self._given_up = asyncio.Event()

    def attach(self, controls: Controls) -> None:
        self._controls = controls

    @property
    def controls(self) -> Controls:
        assert self._controls is not None, "attach comes first"
        return self._controls

    async def lease(self, room: int) -> list[Lease]:
        back_off = BackOff()
        while not self._stopping.is_set():
            if leases := self._held.take(room):
                return leases
            try:
                await self._unless(self._stopping, self._lease(room))
                back_off.reset()
            except NotRegistered:
                self._forgotten()
            except (ServerAway, Refused, Unacceptable) as error:
                self._note_away(error)
                await self._unless(self._stopping, asyncio.sleep(back_off.next_s()))
        return []

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        """Returns when the server has taken the session's end, or never will."""
        broken_off = result.stage is Stage.CANCELLED and not result.broken_off_stale
        with self._ending(result) as held:
            if broken_off and held.fate is not Fate.CANCEL:  # the server did not want it: it was the node's end
                await self._return(held, HandBack(session_id=held.session_id, attempt=held.attempt))
            else:
                await self._upload(held, result, trajectory)

    async def hand_back(self, result: SessionResult, ended: EarlierAttempt) -> None:
        """In place of `report`."""
        reason = ended.model_dump(include={"where", "why", "counted"})
        with self._ending(result) as held:
            await self._return(held, HandBack(session_id=held.session_id, attempt=held.attempt, **reason))

    async def until_stopped(self) -> None:
        await self._stopping.wait()

    @contextmanager
    def _ending(self, result: SessionResult) -> Generator[Held]:
        """While the server is told of a session's end."""
        held = self._held.get(result.session_id, result.attempt)
        assert held is not None, "each lease is reported once"
        self._unsent += 1
        try:
            yield held
        finally:
            self._unsent -= 1
            self._sent.set()
            self._held.release(result.session_id)

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        held = self._held.get(session_id)
        if held is None or stage.final:
            return
        held.stage = stage
        self._news.set()
        if held.broken_off:  # it was leased, but had not begun, when its fate was decided
            self.controls.cancel(session_id)

    def stop(self) -> None:
        """No more leases; what runs is broken off and handed back, what is done is uploaded."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        asyncio.get_running_loop().call_later(self._give_up_s, self._given_up.set)
        self._held.drop_waiting()
        for held in self._held:
            self._break_off(held, Fate.HAND_BACK)

    async def beat(self) -> None:
        """Keeps the leases alive until cancelled."""
        while True:
            await asyncio.sleep(self._beat_s / 4)
            # News of a stage need not wait for the next regular beat.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._beat_s * 3 / 4):
                    await self._news.wait()
            self._news.clear()
            if not self._uplink.registered:
                continue
            beat = self._heartbeat()
            try:
                self._apply(beat, await self._uplink.heartbeat(beat))
                self._note_back()
            except NotRegistered:
                self._forgotten()
            except (ServerAway, Refused, Unacceptable) as error:
                self._note_away(error)

    async def leave(self) -> None:
        """The server may forget the node: it comes back under another name, if at all."""
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._uplink.leave()
        except (TimeoutError, NotRegistered, ServerAway, Refused, Unacceptable) as error:
            why = str(error) or "it does not answer"
            log.warning("the server was not told that this node stops: %s", why)

    async def _lease(self, room: int) -> None:
        if not self._uplink.registered:
            credentials = await self._uplink.register(self._registration)
            self._beat_s = credentials.heartbeat_s
            log.info("registered at %s as %s", self._uplink.base_url, credentials.node_id)
        while self._unsent >= MAX_UNSENT:
            self._sent.clear()
            await self._sent.wait()
        wait_s = SHORT_WAIT_S if self._held.waiting else LEASE_WAIT_S
        reply = await self._uplink.lease(LeaseRequest(room=room, wait_s=wait_s))
        self._note_back()
        self._follow(reply.policy)
        self._held.put(reply.leases)
        for lease in reply.leases:
            if held := self._held.get(lease.session.session_id):  # the server has given up that attempt
                self._break_off(held, Fate.LOST)

    def _heartbeat(self) -> Heartbeat:
        revision = self._policy.revision if self._policy else None
        return Heartbeat(
            sessions=self._held.told(),
            generating=self.controls.generating(),
            revision=revision,
            sick=self.controls.sickness(),
        )

    def _follow(self, policy: Policy) -> None:
        """Replies may overtake each other; an older one takes nothing back."""
        if self._policy is None or policy.revision > self._policy.revision:
            self._policy = policy
            self.controls.set_policy(policy)
            self._news.set()  # that it is followed now

    def _apply(self, beat: Heartbeat, reply: HeartbeatReply) -> None:
        """The server speaks of the attempts it was told of, of which there is one for each session; a later one
        may have been leased meanwhile."""
        self._follow(reply.policy)
        if reply.policy.paused and beat.generating:
            self._news.set()  # somebody may wait for the last of them to end
        told = {session.session_id: session.attempt for session in beat.sessions}
        for session_ids, fate in ((reply.lost, Fate.LOST), (reply.cancel, Fate.CANCEL)):
            named = {(session_id, told[session_id]) for session_id in session_ids if session_id in told}
            self._held.drop_waiting(named)
            for session_id, attempt in named:
                if held := self._held.get(session_id, attempt):
                    self._break_off(held, fate)

    def _break_off(self, held: Held, fate: Fate) -> None:
        if fate > held.fate:
            log.info("session %s, attempt %d: %s", held.session_id, held.attempt, fate.name.lower())
            held.fate = fate
            self.controls.cancel(held.session_id)

    def _forgotten(self) -> None:
        """The server knows nothing of this node: all its sessions run elsewhere, or will."""
        if self._uplink.registered:
            log.warning("the server does not know this node any more; it registers again")
        self._uplink.forget()
        self._policy = None
        self._held.drop_waiting()
        for held in self._held:
            self._break_off(held, Fate.LOST)

    async def _return(self, held: Held, session: HandBack) -> None:
        if held.fate is not Fate.LOST:
            log.info("session %s, attempt %d is handed back: %s", held.session_id, held.attempt, session.why)
            await self._deliver(held, partial(self._uplink.hand_back, session))

    async def _upload(self, held: Held, result: SessionResult, trajectory: Trajectory | None) -> None:
        if held.fate is Fate.LOST:
            return
        try:
            calls = await self.controls.calls(held.session_id)
            blob = await asyncio.to_thread(upload_of, result, trajectory, calls)
        except Exception as error:  # the session gets its one result all the same
            told = {"session_id": held.session_id}
            log.exception("session %s: its upload cannot be made", held.session_id, extra=told)
            blob = bare_upload(result, f"the upload cannot be made: {error}")
        try:
            await self._deliver(held, partial(self._uplink.upload, held.session_id, held.attempt, blob))
        except Unacceptable as error:
            log.warning("session %s: its upload of %d bytes: %s", held.session_id, len(blob), error)
            bare = bare_upload(result, str(error))
            with suppress(Unacceptable):  # then the server will run it again, or give it up
                await self._deliver(held, partial(self._uplink.upload, held.session_id, held.attempt, bare))

    async def _deliver(self, held: Held, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        back_off = BackOff()
        while held.fate is not Fate.LOST and not self._given_up.is_set():
            try:
                if await self._unless(self._given_up, send()):
                    return
            except NotRegistered:
                self._forgotten()
            except Refused as error:
                log.warning("session %s, attempt %d is dropped: %s", held.session_id, held.attempt, error)
                return
            except ServerAway as error:
                self._note_away(error)
                await self._unless(self._given_up, asyncio.sleep(back_off.next_s()))
        log.warning("session %s, attempt %d is not delivered", held.session_id, held.attempt)

    async def _unless(self, event: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
        """Does the work, unless the event comes first: then it is broken off. Whether it was done."""
        doing = asyncio.ensure_future(work)
        waiting = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait([doing, waiting], return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                doing.result()
            return doing.done()
        finally:
            for task in (doing, waiting):
                task.cancel()
            await asyncio.gather(doing, waiting, return_exceptions=True)

    def _note_away(self, error: Exception) -> None:
        if not self._away:
            log.warning("the server is away, sessions go on: %s", error)
        self._away = True

    def _note_back(self) -> None:
        if self._away:
            log.info("the server is back")
        self._away = False
