"""What a session changed in its workspace, as a patch."""

from __future__ import annotations

from polar.session.live import LiveSession


async def note_baseline(live: LiveSession) -> None:
    """Keeps in mind how the workspace stands before the harness runs."""
    if live.task.keep.patch:
        raise NotImplementedError
