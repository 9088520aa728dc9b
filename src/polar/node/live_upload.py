"""Uploads what a watched session has done so far: its calls and the ends of its logs, whenever they changed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from polar.node.uplink import Uplink, UplinkError
from polar.types import Call, SessionFile, SessionUpload
from polar.types.codec import encode

TAIL_BYTES = 64 * 2**10
"""Of each log file."""
MAX_BYTES = 4 * 2**20
"""Of an upload. Of a session with more calls, the last ones are left out until it has ended."""

log = logging.getLogger("polar.node")


class LiveUploads:
    """Sends one upload at a time for each session."""

    def __init__(
        self,
        uplink: Uplink,
        calls: Callable[[str], Awaitable[list[Call]]],
        files: Callable[[str], tuple[SessionFile, ...]],
    ) -> None:
        self._uplink = uplink
        self._calls = calls
        self._files = files
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._sent: dict[str, bytes] = {}
        """Digest of what the server has of each session."""

    def send(self, attempts: Mapping[str, int]) -> None:
        """The watched sessions, each with its attempt; those that are no longer watched are forgotten."""
        for session_id in self._sent.keys() - attempts.keys():
            del self._sent[session_id]
        for session_id, attempt in attempts.items():
            if session_id not in self._sending:
                task = asyncio.create_task(self._send(session_id, attempt))
                self._sending[session_id] = task
                task.add_done_callback(lambda _, name=session_id: self._sending.pop(name, None))

    @property
    def busy(self) -> bool:
        return bool(self._sending)

    async def close(self) -> None:
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, session_id: str, attempt: int) -> None:
        """A failure costs one look: the next heartbeat tries again, and the session goes on."""
        try:
            calls = await self._calls(session_id)
            files = await asyncio.to_thread(self._files, session_id)
            blob = await asyncio.to_thread(live_blob, calls, files)
            digest = hashlib.sha256(blob).digest()
            if self._sent.get(session_id) != digest:
                await self._uplink.upload_live(session_id, attempt, blob)
                self._sent[session_id] = digest
        except UplinkError as error:
            log.info("session %s: what it does is not shown: %s", session_id, error)
        except Exception:
            extra = {"session_id": session_id}
            log.warning("session %s: what it does is not shown", session_id, exc_info=True, extra=extra)


def live_blob(calls: Sequence[Call], files: Sequence[SessionFile]) -> bytes:
    """A `SessionUpload` without a result."""
    tails = tuple(msgspec.structs.replace(file, content=file.content[-TAIL_BYTES:]) for file in files)
    kept = tuple(calls)
    while True:
        blob = encode(SessionUpload(result=b"", trajectory=None, calls=kept, files=tails))
        if len(blob) <= MAX_BYTES or not kept:
            return blob
        kept = kept[: len(kept) * 3 // 4]
