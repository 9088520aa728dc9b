"""RUNNING: the harness works until it ends or its time is up."""

from __future__ import annotations

from polar.errors import boundary
from polar.runtimes.base import Command
from polar.session.live import LiveSession


async def run(live: LiveSession) -> None:
    assert live.runtime is not None and live.launch is not None, "INIT comes first"
    trust = live.interception.env if live.interception is not None else {}
    command = Command(argv=live.launch.argv, env={**trust, **live.launch.env}, log_name="harness")
    with boundary("harness"):
        finished = await live.runtime.exec(command)
    live.stdout_tail, live.stderr_tail = _keyless(live, finished.stdout_tail), _keyless(live, finished.stderr_tail)
    live.learn(
        exit_code=finished.exit_code,
        memory_kills=finished.memory_kills,
        last_output=live.stderr_tail.strip() or live.stdout_tail.strip(),
    )


def _keyless(live: LiveSession, output: str) -> str:
    return output.replace(live.slot.key, "***") if live.slot else output


async def silence(live: LiveSession) -> None:
    """Kills remaining processes and seals the slot, so that nothing changes while the work is judged."""
    try:
        if live.runtime is not None:
            with boundary("runtime"):
                await live.runtime.kill()
    finally:
        if live.slot is not None:
            await live.services.slots.seal(live.session_id)
