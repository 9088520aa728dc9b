"""The page of a session at a server: what its node uploaded, also while it runs, in the trace viewer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

from polar.dashboard.material import material_of_upload
from polar.dashboard.page import SessionPage
from polar.dashboard.session_page import page_of
from polar.dashboard.spelling import NUMBERS, OF_A_SERVER, Spelling, spelling_or_numbers
from polar.dashboard.stage_times import Stages, stages_of
from polar.server.errors import Conflict, NotFound
from polar.server.overview import live
from polar.server.records import sessions, tasks, uploads
from polar.server.state import State
from polar.types import Call, Lease, SessionResult, SessionUpload, Spec, Stage
from polar.types.codec import decode

OTHER_MODEL = "the renderer in this server's polar.toml is not that of the session's model."
COMPARED = 3
"""Replies of a session that are compared with their tokens."""
COMPARED_CHARACTERS = 12


class Transcripts:
    """Makes one page after another: a long session keeps a core busy for seconds."""

    def __init__(self, state: State, renderer: Spec | None) -> None:
        self._state = state
        self._renderer = renderer
        self._spelling: tuple[Spelling, str] | None = None
        self._one_by_one = asyncio.Lock()

    async def page(self, session_id: str) -> tuple[SessionPage, int]:
        """With the version of what is shown of a session that runs. Raises `NotFound` for an unknown session."""
        lease = await self._state.read(sessions.lease_of, session_id)
        result = (await self._state.read(sessions.status, session_id)).result
        submitted = (await self._state.read(tasks.status, lease.session.task_id)).submitted
        async with self._one_by_one:
            spelled = await self._spelled()
            version, upload = (0, await self._upload(session_id)) if result else await self._live(session_id)
            return await asyncio.to_thread(_made, lease, result, upload, submitted, spelled), version

    async def _live(self, session_id: str) -> tuple[int, SessionUpload | None]:
        """What its node has sent so far; the node begins to send when somebody looks."""
        try:
            await self._state.change(live.watch, session_id)
        except Conflict:  # it has ended meanwhile
            return 0, await self._upload(session_id)
        newest = await self._state.read(live.newest, session_id, 0)
        blob = newest and await self._state.read(live.read, session_id, newest)
        if newest is None or blob is None:
            return 0, None
        return newest.version, await asyncio.to_thread(decode, blob, SessionUpload)

    async def _upload(self, session_id: str) -> SessionUpload | None:
        try:
            blob = await uploads.read_blob(self._state, session_id)
        except NotFound:
            return None
        return await asyncio.to_thread(decode, blob, SessionUpload)

    async def _spelled(self) -> tuple[Spelling, str]:
        if self._spelling is None:
            self._spelling = await spelling_or_numbers(self._renderer, OF_A_SERVER)
        return self._spelling


def _made(
    lease: Lease,
    result: SessionResult | None,
    upload: SessionUpload | None,
    submitted: float,
    spelled: tuple[Spelling, str],
) -> SessionPage:
    calls = upload.calls if upload else ()
    stages: Stages = [(Stage.QUEUED, submitted)]
    if result is not None and result.stage_s:
        stages = stages_of(result, submitted, calls)
    spell, note = spelled
    if not fits(spell, calls) and not note:
        spell, note = _numbers, NUMBERS + OTHER_MODEL
    return page_of(material_of_upload(lease, upload, stages, result), spell, note)


def fits(spell: Spelling, calls: Sequence[Call]) -> bool:
    """Whether sampled tokens, spelled so, begin replies as they were captured. The server does not know with which
    model its nodes sampled, and the tokens of another model would become wrong words."""
    spoken = (call for call in calls if len(call.response.content) >= COMPARED_CHARACTERS)
    compared = list(islice(spoken, COMPARED))
    return not compared or any(
        call.response.content[:COMPARED_CHARACTERS] in spell(call.completion_ids) for call in compared
    )


def _numbers(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))
