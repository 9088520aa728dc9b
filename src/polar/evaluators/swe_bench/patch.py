"""The agent's work as a patch: made on the node from copies of both workspaces, applied in a runtime.

No git of the agent's takes part: its hooks, filters, settings and programs are nowhere on the way. New files that
the base's `.gitignore` ignores are left out, as `git add` does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from polar.errors import EvaluatorError
from polar.evaluators.hardening.work import ComparedWork
from polar.runtimes.base import Command, Runtime
from polar.runtimes.host.threads import in_thread

PATCH = "patch.diff"
NAME = ".polar-patch.diff"
"""In the home of the evaluator's runtime."""
NO_FILE = 69
BYTES_AS_THEY_ARE = "* !text !crlf !eol !ident !filter !working-tree-encoding !diff\n"
ONE_OR_NONE = (0, 1)
"""Exit codes of `git check-ignore`: some paths are ignored, or none."""

# Git must not find a repository: within one, it silently leaves out files that are not below its top folder.
APPLY = r"""
[ -f "$1" ] || exit 69
export GIT_DIR=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null LC_ALL=C
git apply --binary --whitespace=nowarn "$1" || patch --batch --forward --fuzz=5 -p1 --unified --input="$1"
"""
"""Git writes all of a patch or nothing. Without `--unified`, `patch` would run a script for `ed` in it."""


class PatchTooLarge(EvaluatorError):
    """The agent changed more than a patch may have."""


class NotApplied(EvaluatorError):
    """Neither git nor `patch` can apply it."""


async def patch_of(work: ComparedWork, max_bytes: int) -> bytes:
    """What the agent changed, for `git apply`; empty: nothing. Raises `PatchTooLarge` if its files have more than
    `max_bytes`."""
    with tempfile.TemporaryDirectory(prefix="patch-", dir=work.base.parent) as name:
        folder = Path(name).absolute()
        await _git(folder, None, "init", "--quiet", "--bare", "--template=", str(folder / "git"))
        (folder / "git" / "info").mkdir(exist_ok=True)
        (folder / "git" / "info" / "attributes").write_text(BYTES_AS_THEY_ARE)
        await in_thread(_copy_some, work.base, folder / "before", work.removed)
        await _leave_out_ignored(folder, work)
        if (size_bytes := await in_thread(_size_of, work.work)) > max_bytes:
            raise PatchTooLarge(
                f"the changed files have {size_bytes} bytes, more than max_patch_bytes ({max_bytes})"
            )
        before = await _tree(folder, folder / "before")
        after = await _tree(folder, work.work)
        how = ("--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
        return await _git(folder, None, "diff-tree", "-r", "-p", *how, before, after)


async def apply_in(runtime: Runtime, patch: bytes) -> None:
    """Raises `NotApplied`."""
    await runtime.put(NAME, patch, home=True)
    command = Command(("sh", "-c", APPLY, "sh", f"{runtime.home}/{NAME}"), log_name="apply")
    finished = await runtime.exec(command)
    if finished.exit_code == NO_FILE:
        raise EvaluatorError("the patch is not where the node wrote it in the evaluator's runtime")
    if finished.exit_code != 0:
        raise NotApplied((finished.stderr_tail or finished.stdout_tail).strip()[-500:])


async def apply_here(folder: Path, patch: bytes) -> None:
    """To a copy on the node. Raises `NotApplied`."""
    with tempfile.TemporaryDirectory(prefix="patch-") as name:
        path = Path(name, PATCH)
        path.write_bytes(patch)
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", APPLY, "sh", str(path)),
            cwd=folder,
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = await _output(process)
        if process.returncode != 0:
            raise NotApplied(output.decode(errors="replace").strip()[-500:])


def _size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def _copy_some(source: Path, target: Path, paths: tuple[str, ...]) -> None:
    target.mkdir()
    for path in paths:
        found = source / path
        if found.is_symlink() or found.is_file():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(found, target / path, follow_symlinks=False)


async def _leave_out_ignored(folder: Path, work: ComparedWork) -> None:
    """Removes new files that the base's own rules ignore."""
    new = sorted(set(work.laid.work) - set(work.removed))
    if not new:
        return
    names = b"\0".join(os.fsencode(path) for path in new) + b"\0"
    look = ("check-ignore", "--no-index", "-z", "--stdin")
    ignored = await _git(folder, work.base, *look, stdin=names, codes=ONE_OR_NONE)
    for path in filter(None, ignored.split(b"\0")):
        found = work.work / os.fsdecode(path)
        if found.is_symlink() or not found.is_dir():
            found.unlink(missing_ok=True)


async def _tree(folder: Path, files: Path) -> str:
    """The id of a tree with these files."""
    (folder / "git" / "index").unlink(missing_ok=True)
    await _git(folder, files, "add", "--all", "--force", ".")
    return (await _git(folder, files, "write-tree")).decode().strip()


async def _git(
    folder: Path, files: Path | None, *arguments: str, stdin: bytes = b"", codes: tuple[int, ...] = (0,)
) -> bytes:
    """What git prints. It reads no settings but those of a repository in `folder` that the node made."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_DIR": str(folder / "git"),
    }
    words = ("-c", "core.bare=false", "-c", "core.hooksPath=/dev/null") if files is not None else ()
    if files is not None:
        environment["GIT_WORK_TREE"] = str(files.absolute())
    try:
        process = await asyncio.create_subprocess_exec(
            *("git", *words, *arguments),
            cwd=files or folder,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except FileNotFoundError as error:
        raise EvaluatorError("swe_bench needs git on the node, but it is not on PATH: install it") from error
    output = await _output(process, stdin)
    if process.returncode not in codes:
        raise EvaluatorError(f"git {arguments[0]} failed on the node with code {process.returncode}")
    return output


async def _output(process: asyncio.subprocess.Process, stdin: bytes = b"") -> bytes:
    try:
        return (await process.communicate(stdin or None))[0]
    except BaseException:
        if process.returncode is None:
            process.kill()
        await process.wait()
        raise
