"""Brings the workspace of a stored session back into a fresh runtime, from what its task kept of it.

Programs, home and everything outside the workspace are those of the task's base.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from polar.errors import PolarError
from polar.runtimes.base import Command, Runtime
from polar.runtimes.host.threads import in_thread
from polar.session.files.patch import PATCH
from polar.store.paths import SessionPaths
from polar.types import SessionResult

KEPT_WHOLE = "artifacts"
"""What a result lists if the task kept all of the workspace."""
PATCH_IN_HOME = ".polar-restored.diff"
NO_GIT = 69

EMPTY_WORKSPACE = "rm -rf -- * .[!.]* ..?*"
OPEN_WORKSPACE = "chmod -R go+rX . 2>/dev/null || true"
"""The kept copy is private on the node; in the runtime, programs of other users may have to read it."""

# Git must not find a repository: within one, it silently leaves out files that are not below its top folder.
APPLY_PATCH = r"""
command -v git >/dev/null 2>&1 || exit 69
export GIT_DIR=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null LC_ALL=C
git apply --binary --whitespace=nowarn "$1" && rm -f "$1"
"""


class NotRestored(PolarError):
    """The workspace of a stored session cannot be brought back."""


@dataclass(frozen=True)
class KeptWorkspace:
    """One of both, the copy if there are two."""

    copy: Path | None = None
    patch: Path | None = None
    notes: tuple[str, ...] = ()
    """What the copy or the patch lacks."""


def kept_workspace(result: SessionResult, paths: SessionPaths) -> KeptWorkspace:
    """Raises `NotRestored` if the task kept neither."""
    if KEPT_WHOLE in result.kept and paths.artifacts.is_dir():
        return KeptWorkspace(copy=paths.artifacts, notes=_left_out(result, KEPT_WHOLE))
    if PATCH in result.kept and paths.patch.is_file():
        return KeptWorkspace(patch=paths.patch, notes=_left_out(result, PATCH))
    raise NotRestored(
        "the session's workspace was not kept: run its task with keep.artifacts = ['.'] or keep.patch = true"
    )


async def restore(runtime: Runtime, kept: KeptWorkspace) -> None:
    """Into a runtime that begins as the session's did."""
    if kept.copy is not None:
        await _run(runtime, EMPTY_WORKSPACE, "empty the workspace")
        await runtime.put_folder(kept.copy, ".")
        await _run(runtime, OPEN_WORKSPACE, "open the workspace")
    elif kept.patch is not None:
        patch = await in_thread(kept.patch.read_bytes)
        if patch:
            await runtime.put(PATCH_IN_HOME, patch, home=True)
            await _run(runtime, APPLY_PATCH, "apply the kept patch", f"{runtime.home}/{PATCH_IN_HOME}")


async def _run(runtime: Runtime, script: str, what: str, *arguments: str) -> None:
    finished = await runtime.exec(Command(("sh", "-c", script, "sh", *arguments), log_name="restore"))
    if finished.exit_code == NO_GIT:
        raise NotRestored("the kept patch needs git in the runtime")
    if finished.exit_code != 0:
        raise NotRestored(f"cannot {what}: {finished.stderr_tail.strip()[-500:]}")


def _left_out(result: SessionResult, name: str) -> tuple[str, ...]:
    return tuple(line for line in result.left_out if line.startswith((f"{name}:", f"{name}/")))
