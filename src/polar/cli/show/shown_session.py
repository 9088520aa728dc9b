"""A session that can be shown, whether a run on this machine or a rollout server has it."""

from __future__ import annotations

from itertools import pairwise

from polar.cli.service.remote_sessions import ServerSession
from polar.errors import PolarError
from polar.runs.state import RunState, state_of
from polar.runs.stored import StoredSession
from polar.types import Call, Stage

ShownSession = StoredSession | ServerSession


def run_state(session: ShownSession) -> RunState | None:
    """None: the session is a server's."""
    return state_of(session.run, session.run.read_record()) if isinstance(session, StoredSession) else None


def timed(session: ShownSession) -> list[tuple[Stage, float, float | None]]:
    """Stages with the seconds until the next one; the last has no end."""
    stages = session.stages
    took = [*(end - at for (_, at), (_, end) in pairwise(stages)), None]
    return [(stage, at, duration) for (stage, at), duration in zip(stages, took, strict=False)]


def short_id(call_id: str, session_id: str) -> str:
    """`1.2`: the second call of the first attempt."""
    return call_id.removeprefix(f"{session_id}.")


def chosen_call(session: ShownSession, wanted: str) -> Call:
    """By its number in the latest attempt (`2`), with the attempt (`1.2`) or by its whole id."""
    by_id = {call.call_id: call for call in session.calls}
    names = (wanted, f"{session.session_id}.{wanted}")
    numbered = [call_id for call_id in by_id if call_id.rpartition(".")[2] == wanted]
    found = [name for name in (*names, *numbered[-1:]) if name in by_id]
    if found:
        return by_id[found[0]]
    known = ", ".join(short_id(call_id, session.session_id) for call_id in by_id) or "none"
    raise PolarError(f"session {session.session_id} has no call {wanted!r}; it has {known}")
