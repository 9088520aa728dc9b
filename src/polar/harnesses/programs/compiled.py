"""Compiled code of a JavaScript harness for contained sessions, which would compile it again at each start.

Node.js keeps compiled code in a folder, by the path of its source. No session may run code that another has
written, so the node fills the folder itself, once: it starts the harness in an empty sandbox, at the paths that
contained sessions see, and asks for its version. Sessions get the folder read-only.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from polar.errors import PolarError
from polar.harnesses.base import NpmPack
from polar.harnesses.programs.native import node_pack, node_program
from polar.runtimes.base import Program
from polar.runtimes.host.spawn import errors_of
from polar.store.cache import cached_folder

LOGGER = logging.getLogger("polar.harnesses")
CACHE_VARIABLE = "NODE_COMPILE_CACHE"
SUFFIX = ".compiled"
"""The folder stands beside the package, under the package's name and this."""
TIMEOUT_S = 60
SYSTEM_FOLDERS = ("/usr", "/bin", "/lib", "/lib64")


async def compiled_code(packs: Iterable[NpmPack], installed: Mapping[str, Path]) -> tuple[Program, ...]:
    """For each pack with a JavaScript program. Nothing without bubblewrap, without Polar's Node.js, or if the
    cache cannot be written to: sessions work without it."""
    programs = [pack for pack in packs if pack.entry]
    if not programs or shutil.which("bwrap") is None or node_pack().package not in installed:
        return ()
    mounted = {name: Program(folder.name, folder) for name, folder in installed.items()}
    try:
        return tuple([await _compiled(mounted[pack.package], pack.entry, mounted) for pack in programs])
    except (PolarError, OSError) as error:
        LOGGER.debug("no compiled code: %s", error)
        return ()


async def _compiled(harness: Program, entry: str, mounted: Mapping[str, Program]) -> Program:
    name = f"{harness.name}{SUFFIX}"
    node = node_program({package: Path(program.mount_point) for package, program in mounted.items()})

    async def fill(folder: Path) -> None:
        """If it fails the folder stays empty, so that not every session tries again."""
        sandbox = _sandbox(mounted.values(), Program(name, folder))
        command = (*sandbox, node, f"{harness.mount_point}/{entry}", "--version")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                exit_code, errors = await errors_of(*command)
        except TimeoutError:
            exit_code, errors = -1, f"no answer within {TIMEOUT_S} s"
        if exit_code != 0:
            LOGGER.info("contained sessions compile %s at each start: %s", harness.name, errors[-300:])

    others = "+".join(sorted(program.name for program in mounted.values() if program is not harness))
    return Program(name, await cached_folder(f"compiled/{harness.name}+{others}", fill))


def _sandbox(programs: Iterable[Program], filled: Program) -> Iterator[str]:
    """Bubblewrap with these programs at their places, and `filled`, which is written to; without network."""
    yield from ("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--tmpfs", "/")
    for folder in SYSTEM_FOLDERS:
        yield from ("--ro-bind-try", folder, folder)
    yield from ("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")
    for program in programs:
        yield from ("--ro-bind", str(program.source), program.mount_point)
    yield from ("--bind", str(filled.source), filled.mount_point)
    yield from ("--setenv", CACHE_VARIABLE, filled.mount_point)
    yield from ("--setenv", "HOME", "/tmp")  # there is no /etc/passwd to find another in
