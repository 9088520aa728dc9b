"""What a runtime could not give on this machine stands in the session's result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench import Begin

from polar.gateway.calls.policy_gate import PolicyGate
from polar.runtimes.base import SessionFolders
from polar.runtimes.local.runtime import LocalOptions, LocalRuntime
from polar.session.postrun import result_of


async def test_unequal_paths_are_noted(begin: Begin, tmp_path: Path) -> None:
    live = await begin()
    live.services = replace(live.services, policy=PolicyGate())
    assert live.runtime is not None
    assert result_of(live).notes == live.runtime.notes

    apart = LocalRuntime(LocalOptions(same_paths=False))
    await apart.start(SessionFolders("s", tmp_path / "apart", tmp_path / "logs"))
    await live.runtime.stop()
    live.runtime = apart
    (note,) = result_of(live).notes
    assert "prompts of a task's samples may differ" in note
