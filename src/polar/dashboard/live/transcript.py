"""The trace viewer at a server: what nodes uploaded of a session, also while it runs, or of two side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from polar.dashboard.comparison import comparison_of
from polar.dashboard.material import BUILDERS, PageMaterial, material_of_upload, rebuilt
from polar.dashboard.page import ComparisonPage, SessionPage
from polar.dashboard.session_page import page_of
from polar.dashboard.spelling import NUMBERS, OF_A_SERVER, Spelling, spelling_or_numbers
from polar.dashboard.stage_times import Stages, stages_of
from polar.server.errors import Gone, NotFound
from polar.server.overview import live, session_list
from polar.server.records import sessions, tasks, uploads
from polar.server.state import State
from polar.types import Call, Lease, SessionFilter, SessionResult, SessionUpload, Spec, Stage
from polar.types.codec import decode
from polar.types.packed import unpack_upload

OTHER_MODEL = "the renderer in this server's polar.toml is not that of the session's model."
MOST_NEIGHBOURS = 200
"""Sessions that a page suggests for a comparison."""
COMPARED = 3
"""Replies of a session that are compared with their tokens."""
COMPARED_CHARACTERS = 12


@dataclass(frozen=True)
class TracesOf:
    """One side of a comparison."""

    session_id: str
    builder: str = ""
    """One of `BUILDERS`; empty: the stored traces."""


class Transcripts:
    """Makes one page after another: a long session keeps a core busy for seconds."""

    def __init__(self, state: State, renderer: Spec | None) -> None:
        self._state = state
        self._renderer = renderer
        self._spelling: tuple[Spelling, str] | None = None
        self._one_by_one = asyncio.Lock()

    async def page(self, session_id: str) -> tuple[SessionPage, int]:
        """With the version of what is shown of a session that runs. Raises `NotFound` for an unknown session."""
        async with self._one_by_one:
            material, version = await self._material(session_id)
            spell, note = await self._spelled(material)
            page = await asyncio.to_thread(page_of, material, spell, note)
            others = await self._neighbours(material)
            return msgspec.structs.replace(page, others=others, builders=BUILDERS), version

    async def comparison(self, left: TracesOf, right: TracesOf) -> ComparisonPage:
        """Raises `NotFound` for an unknown session."""
        async with self._one_by_one:
            one, other = await self._traces(left), await self._traces(right)
            spelled = [await self._spelled(side) for side in (one, other)]
            spell, note = next((each for each in spelled if each[1]), spelled[0])  # numbers, if either needs them
            page = await asyncio.to_thread(comparison_of, one, other, spell, note)
            others = await self._neighbours(one)
            return msgspec.structs.replace(page, others=others, builders=BUILDERS)

    async def _traces(self, wanted: TracesOf) -> PageMaterial:
        material, _ = await self._material(wanted.session_id)
        return await asyncio.to_thread(rebuilt, material, wanted.builder)

    async def _material(self, session_id: str) -> tuple[PageMaterial, int]:
        lease = await self._state.read(sessions.lease_of, session_id)
        result = (await self._state.read(sessions.status, session_id)).result
        submitted = (await self._state.read(tasks.status, lease.session.task_id)).submitted
        version, upload = (0, await self._upload(session_id)) if result else await self._live(session_id)
        return await asyncio.to_thread(_material_of, lease, result, upload, submitted), version

    async def _neighbours(self, material: PageMaterial) -> list[str]:
        """The newest sessions of its group."""
        task = material.lease.task
        wanted = SessionFilter(group_id=task.group_id or task.task_id)
        found = await self._state.read(session_list.page, wanted, None, MOST_NEIGHBOURS)
        return [session.session_id for session in found.sessions]

    async def _live(self, session_id: str) -> tuple[int, SessionUpload | None]:
        """What its node has sent so far; the node begins to send when somebody looks."""
        if not await self._state.change(live.watch, session_id):  # it has ended meanwhile
            return 0, await self._upload(session_id)
        newest = await self._state.read(live.newest, session_id, 0)
        blob = newest and await self._state.read(live.read, session_id, newest)
        if newest is None or blob is None:
            return 0, None
        return newest.version, await asyncio.to_thread(decode, blob, SessionUpload)

    async def _upload(self, session_id: str) -> SessionUpload | None:
        try:
            blob = await uploads.read_blob(self._state, session_id)
        except (NotFound, Gone):
            return None
        return await asyncio.to_thread(unpack_upload, blob)

    async def _spelled(self, material: PageMaterial) -> tuple[Spelling, str]:
        """Words, or numbers and a note that says why."""
        if self._spelling is None:
            self._spelling = await spelling_or_numbers(self._renderer, OF_A_SERVER)
        spell, note = self._spelling
        is_own = bool(note) or await asyncio.to_thread(fits, spell, material.calls)
        return (spell, note) if is_own else (_numbers, NUMBERS + OTHER_MODEL)


def _material_of(
    lease: Lease, result: SessionResult | None, upload: SessionUpload | None, submitted: float
) -> PageMaterial:
    stages: Stages = [(Stage.QUEUED, submitted)]
    if result is not None and result.stage_s:
        stages = stages_of(result, submitted, upload.calls if upload else ())
    return material_of_upload(lease, upload, stages, result)


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
