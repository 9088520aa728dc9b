"""The rollout server as the source of a node's sessions.

Sessions are leased by long-poll when the pipeline has room, kept by heartbeats, and their results uploaded until
the server has accepted or refused them. They go on running while the server is away. A node that stops cancels its
sessions and hands them back, so that they run again elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from polar.back_off import BackOff
from polar.log_buffer import LogBuffer
from polar.node.lease_table import Disposition, LeaseEntry, LeaseTable
from polar.node.live_upload import LiveUploads
from polar.node.retries import unless
from polar.node.uplink import (
    LeaseRefused,
    NotRegistered,
    ServerAway,
    Unacceptable,
    Uplink,
    UplinkError,
    bare_upload,
    upload_of,
)
from polar.types import (
    Call,
    EarlierAttempt,
    EngineUse,
    HandBack,
    Heartbeat,
    HeartbeatReply,
    Lease,
    LeaseRequest,
    NodeAbilities,
    Policy,
    Registration,
    SessionFile,
    SessionResult,
    Sickness,
    Stage,
    Trajectory,
)
from polar.types.service.nodes import MAX_LINES

LEASE_WAIT_S = 20.0
SHORT_WAIT_S = 0.5
"""While the next attempt of a session waits until its earlier one has ended here."""
LEAVE_S = 5.0
SILENT_BEATS = 4
"""After so many heartbeats without an answer the server counts as away."""
KEY_LIFE_S = 24 * 3600.0
"""The node asks for another key after this time; its sessions go on."""
MAX_UNSENT = 64
"""With this many results not yet accepted by the server, nothing new is leased."""

log = logging.getLogger("polar.node")


@dataclass(frozen=True)
class Controls:
    """How the source acts on the node that runs its sessions."""

    cancel: Callable[[str, str], bool]
    """Cancels a session, for a reason that may be empty; it is reported all the same."""
    set_policy: Callable[[Policy], None]
    generating: Callable[[], int]
    """Number of generations under way."""
    calls: Callable[[str], Awaitable[list[Call]]]
    sickness: Callable[[], Sickness | None] = lambda: None
    files: Callable[[str], tuple[SessionFile, ...]] = lambda _: ()
    """Logs and kept files of a session, as much as may be uploaded. Reads from disk: call it in a thread."""
    files_so_far: Callable[[str], tuple[SessionFile, ...]] = lambda _: ()
    """The same while the session runs, without its key."""
    use: Callable[[], EngineUse | None] = lambda: None
    """What the node's calls did so far."""
    waited_s: Callable[[str], float] = lambda _: 0.0
    """How long a session has waited for the model."""


class ServerSource:
    """A `ReturningSource` and a `Watcher`: `attach` it before the first lease, run `beat` beside the pipeline."""

    patient = True

    def __init__(self, uplink: Uplink, registration: Registration, *, give_up_s: float = 20.0) -> None:
        """`registration`: its abilities may be replaced later."""
        self.stopping = asyncio.Event()
        """No more leases."""
        self._stopped = False
        self.log = LogBuffer(lambda record: not record.name.startswith("polar.server"))
        """What the heartbeats deliver; a server may run in the same process."""
        self._uplink = uplink
        self._registration = registration
        self._known_abilities = registration.abilities
        """What the server knows, since the registration or the last heartbeat that it answered."""
        self._give_up_s = give_up_s
        """How long a node that stops tries to reach a server that is away."""
        self._controls: Controls | None = None
        self._leases = LeaseTable()
        self.unsent = 0
        """Results that the server has not accepted yet."""
        self._sent = asyncio.Event()
        self._policy: Policy | None = None
        """The newest the server has sent since the node registered."""
        self._beat_s = 1.0
        self._beat_early = asyncio.Event()
        self._away = ""
        """Why the server gave no answer to the last request; empty: it did."""
        self._heard_at = time.monotonic()
        self._given_up = asyncio.Event()
        self._live: LiveUploads | None = None

    def attach(self, controls: Controls) -> None:
        self._controls = controls
        self._live = LiveUploads(self._uplink, controls.calls, controls.files_so_far)

    def can(self, abilities: NodeAbilities) -> None:
        """What the node can run now, for the next heartbeat."""
        self._registration = self._registration.model_copy(update={"abilities": abilities})

    @property
    def controls(self) -> Controls:
        assert self._controls is not None, "call attach first"
        return self._controls

    @property
    def trouble(self) -> str:
        """Why the server does not lease sessions to this node; empty: it can."""
        if self._away:
            return f"the server at {self._uplink.base_url} is away: {self._away}"
        if not self._uplink.registered:
            return f"not registered at {self._uplink.base_url}"
        silent_s = time.monotonic() - self._heard_at
        return f"the server is silent for {silent_s:.0f} s" if silent_s > SILENT_BEATS * self._beat_s else ""

    async def lease(self, room: int) -> list[Lease]:
        back_off = BackOff()
        while not self.stopping.is_set():
            if leases := self._leases.take(room):
                return leases
            try:
                await unless(self.stopping, self._lease(room))
                back_off.reset()
            except NotRegistered:
                self._forget_registration()
            except UplinkError as error:
                self._note_away(error)
                await unless(self.stopping, asyncio.sleep(back_off.next_s()))
        return []

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        """Returns when the server has accepted the session's end, or never will."""
        cancelled = result.stage is Stage.CANCELLED and not result.broken_off_stale
        with self._ending(result) as entry:
            if cancelled and entry.disposition is not Disposition.CANCEL:  # by the node, not by the server
                await self._return(entry, HandBack(session_id=entry.session_id, attempt=entry.attempt))
            else:
                await self._upload(entry, result, trajectory)

    async def hand_back(self, result: SessionResult, ended: EarlierAttempt) -> None:
        """Instead of `report`."""
        reason = ended.model_dump(include={"where", "why", "counted"})
        with self._ending(result) as entry:
            await self._return(entry, HandBack(session_id=entry.session_id, attempt=entry.attempt, **reason))

    @contextmanager
    def _ending(self, result: SessionResult) -> Generator[LeaseEntry]:
        """While the session's end is sent to the server."""
        entry = self._leases.get(result.session_id, result.attempt)
        assert entry is not None, "each lease is reported once"
        self.unsent += 1
        try:
            yield entry
        finally:
            self.unsent -= 1
            self._sent.set()
            self._leases.release(result.session_id)

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        entry = self._leases.get(session_id)
        if entry is None or stage.final:
            return
        entry.stage = stage
        self._beat_early.set()
        if entry.disposition is not Disposition.RUN:  # it was decided after the lease, before the session began
            self.controls.cancel(session_id, entry.cancel_reason)

    def drain(self) -> None:
        """No more leases; running sessions end as usual."""
        self.stopping.set()
        self._leases.drop_waiting()

    def stop(self) -> None:
        """No more leases; running sessions are cancelled and handed back, finished ones are uploaded."""
        if self._stopped:
            return
        self._stopped = True
        self.stopping.set()
        asyncio.get_running_loop().call_later(self._give_up_s, self._given_up.set)
        self._cancel_all(Disposition.HAND_BACK)

    async def beat(self) -> None:
        """Keeps the leases alive until cancelled."""
        while True:
            await asyncio.sleep(self._beat_s / 4)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._beat_s * 3 / 4):
                    await self._beat_early.wait()
            self._beat_early.clear()
            if not self._uplink.registered:
                continue
            beat = self._heartbeat()
            try:
                self._apply(beat, await self._uplink.heartbeat(beat))
                self._note_back()
                if self._uplink.key_age_s > KEY_LIFE_S:
                    await self._uplink.renew_key()
            except NotRegistered:
                self._forget_registration()
            except UplinkError as error:
                self._note_away(error)

    async def close(self) -> None:
        if self._live is not None:
            await self._live.close()

    async def leave(self) -> None:
        """Removes the node from the server; it would come back under another id."""
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._uplink.leave()
        except (TimeoutError, UplinkError) as error:
            log.warning("the server does not know that this node stops: %s", str(error) or "no answer")

    async def _lease(self, room: int) -> None:
        if not self._uplink.registered:
            registration = self._registration
            credentials = await self._uplink.register(registration)
            self._known_abilities = registration.abilities
            self._beat_s = credentials.heartbeat_s
            log.info("registered at %s as %s", self._uplink.base_url, credentials.node_id)
        while self.unsent >= MAX_UNSENT:
            self._sent.clear()
            await self._sent.wait()
        wait_s = SHORT_WAIT_S if self._leases.waiting else LEASE_WAIT_S
        reply = await self._uplink.lease(LeaseRequest(room=room, wait_s=wait_s))
        self._note_back()
        self._follow(reply.policy)
        self._leases.put(reply.leases)
        for lease in reply.leases:
            if entry := self._leases.get(lease.session.session_id):  # the server has given up that attempt
                self._cancel(entry, Disposition.LOST)

    def _heartbeat(self) -> Heartbeat:
        number, lines = self.log.pending(MAX_LINES)
        abilities = self._registration.abilities
        return Heartbeat(
            sessions=self._leases.held_sessions(self.controls.waited_s),
            generating=self.controls.generating(),
            revision=self._policy.revision if self._policy else None,
            sick=self.controls.sickness(),
            use=self.controls.use(),
            log=lines,
            log_number=number,
            abilities=None if abilities == self._known_abilities else abilities,
        )

    def _follow(self, policy: Policy) -> None:
        """Ignores an older policy: replies may overtake each other."""
        if self._policy is None or policy.revision > self._policy.revision:
            self._policy = policy
            self.controls.set_policy(policy)
            self._beat_early.set()  # acknowledges it

    def _apply(self, beat: Heartbeat, reply: HeartbeatReply) -> None:
        """The reply names sessions by id, and concerns the attempts in the heartbeat: a later one may have been
        leased meanwhile."""
        self.log.delivered(beat.log_number + len(beat.log))
        self._known_abilities = beat.abilities or self._known_abilities
        self._follow(reply.policy)
        if reply.policy.paused and beat.generating:
            self._beat_early.set()  # a client may wait until the last generation has ended
        attempts = {session.session_id: session.attempt for session in beat.sessions}
        if self._live is not None:
            self._live.send({name: attempts[name] for name in reply.watched if name in attempts})
        for session_ids, disposition in ((reply.lost, Disposition.LOST), (reply.cancel, Disposition.CANCEL)):
            named = {(session_id, attempts[session_id]) for session_id in session_ids if session_id in attempts}
            self._leases.drop_waiting(named)
            for session_id, attempt in named:
                if entry := self._leases.get(session_id, attempt):
                    self._cancel(entry, disposition, reply.cancel_reasons.get(session_id, ""))

    def _cancel(self, entry: LeaseEntry, disposition: Disposition, why: str = "") -> None:
        if disposition > entry.disposition:
            if not entry.delivering:
                log.info("session %s, attempt %d: %s", entry.session_id, entry.attempt, disposition.name.lower())
            entry.disposition, entry.cancel_reason = disposition, why
            self.controls.cancel(entry.session_id, why)

    def _cancel_all(self, disposition: Disposition) -> None:
        self._leases.drop_waiting()
        for entry in self._leases:
            self._cancel(entry, disposition)

    def _forget_registration(self) -> None:
        """The server no longer knows this node, so all its sessions run elsewhere, or will."""
        if self._uplink.registered:
            log.warning("the server no longer knows this node; it registers again")
        self._uplink.forget()
        self._policy = None
        self._cancel_all(Disposition.LOST)

    async def _return(self, entry: LeaseEntry, session: HandBack) -> None:
        if not entry.lost:
            log.info("session %s, attempt %d is handed back: %s", entry.session_id, entry.attempt, session.why)
            await self._deliver(entry, partial(self._uplink.hand_back, session))

    async def _upload(self, entry: LeaseEntry, result: SessionResult, trajectory: Trajectory | None) -> None:
        if entry.lost:
            return
        upload = partial(self._uplink.upload, entry.session_id, entry.attempt)
        try:
            calls = await self.controls.calls(entry.session_id)
            files = await asyncio.to_thread(self.controls.files, entry.session_id)
            blob = await asyncio.to_thread(upload_of, result, trajectory, calls, files)
        except Exception as error:  # the session must get its result all the same
            extra = {"session_id": entry.session_id}
            log.exception("session %s: cannot encode its upload", entry.session_id, extra=extra)
            blob = bare_upload(result, f"cannot encode the upload: {error}")
        try:
            await self._deliver(entry, partial(upload, blob))
        except Unacceptable as error:
            log.warning("session %s: upload of %d bytes refused: %s", entry.session_id, len(blob), error)
            with suppress(Unacceptable):  # then the server runs the session again, or gives it up
                await self._deliver(entry, partial(upload, bare_upload(result, str(error))))

    async def _deliver(self, entry: LeaseEntry, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        back_off, entry.delivering = BackOff(), True
        while not entry.lost and not self._given_up.is_set():
            try:
                if await unless(self._given_up, send()):
                    return
            except NotRegistered:
                self._forget_registration()
            except LeaseRefused as error:
                log.warning("session %s, attempt %d is dropped: %s", entry.session_id, entry.attempt, error)
                return
            except ServerAway as error:
                self._note_away(error)
                await unless(self._given_up, asyncio.sleep(back_off.next_s()))
        log.warning("session %s, attempt %d is not delivered", entry.session_id, entry.attempt)

    def _note_away(self, error: Exception) -> None:
        if not self._away:
            log.warning("the server is away, sessions go on: %s", error)
        self._away = str(error) or type(error).__name__

    def _note_back(self) -> None:
        if self._away:
            log.info("the server is back")
        self._away, self._heard_at = "", time.monotonic()
