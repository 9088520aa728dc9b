"""A harness without Polar around it: files and command line as its plug-in makes them, in a plain process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from polar.harnesses.base import Harness, HarnessContext
from polar.types import Slot


async def run_bare(harness: Harness, place: Path, context: HarnessContext) -> str:
    """Runs it in `place`; empty, or the end of what it printed before it failed."""
    home, work = Path(context.home), Path(context.workspace)
    launch = harness.launch(context)
    work.mkdir(parents=True)
    for folder, files in ((home, launch.home_files), (work, launch.workspace_files)):
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    env = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": str(home), **launch.env}
    with (place / "out").open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *launch.argv, cwd=work, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out
        )
        code = await process.wait()
    return f"it ended with {code}: {(place / 'out').read_text()[-300:]}" if code else ""


def context_at(place: Path, slot: Slot, instruction: str, installed: dict[str, Path]) -> HarnessContext:
    return HarnessContext(
        instruction=instruction,
        slot=slot,
        session_id=slot.key,
        workspace=str(place / "work"),
        home=str(place / "home"),
        installed=installed,
    )
