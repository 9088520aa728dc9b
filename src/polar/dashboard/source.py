"""Where the pages of a site come from: a run on disk, or sessions of a rollout server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from polar import __version__
from polar.dashboard.material import PageMaterial, material_of_run
from polar.dashboard.page import ListedSession, RunPage
from polar.errors import PolarError
from polar.runs.stored import StoredSession, read_run_async
from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.types import Call


class UnknownSession(PolarError):
    """The source has no such session."""


class PageSource(Protocol):
    """Sessions that can be shown. Read anew at each question, so a session that runs shows what it has by then."""

    async def listed(self) -> RunPage: ...

    async def session_ids(self) -> Sequence[str]: ...

    async def material(self, session_id: str) -> PageMaterial:
        """Raises `UnknownSession`, or `PolarError` for a session that cannot be read."""
        ...

    async def calls(self, session_id: str) -> Sequence[Call]: ...


class RunSource:
    """A run on disk."""

    def __init__(self, run: RunPaths) -> None:
        self._run = run

    async def listed(self) -> RunPage:
        run = await read_run_async(self._run)
        return RunPage(run.run_id, __version__, run.record.started, [_listed(session) for session in run])

    async def session_ids(self) -> Sequence[str]:
        async with await Journal.open(self._run.journal, read_only=True) as journal:
            return await journal.session_ids()

    async def material(self, session_id: str) -> PageMaterial:
        if session_id not in await self.session_ids():
            raise UnknownSession("no such session in this run")
        return await material_of_run(self._run, session_id)

    async def calls(self, session_id: str) -> Sequence[Call]:
        async with await Journal.open(self._run.journal, read_only=True) as journal:
            return await journal.calls(session_id)


def _listed(session: StoredSession) -> ListedSession:
    result = session.result
    failure = result.failure if result else None
    return ListedSession(
        session_id=session.session_id,
        task_id=session.task.task_id or "",
        instruction=session.task.instruction[:300],
        stage=session.stage.value,
        attempt=session.lease.session.attempt,
        reward=result.reward if result else None,
        failure=f"{failure.where}: {failure.type}" if failure else "",
        calls=session.call_count,
        sampled_tokens=session.sampled_tokens,
    )
