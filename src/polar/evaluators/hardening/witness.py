"""Watches an evaluator's command from outside the tested code: its output, its pytest reports, and how each Python
process in it ended.

All of it is in a folder with a random name in the home of the evaluator's own runtime, made after the agent is
dead, and read by the node when the command is dead. See `python_guard` for what runs inside.
"""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

import msgspec

from polar.errors import WorkspaceUnusable
from polar.evaluators.hardening.judges import PythonProcess
from polar.evaluators.hardening.junit import CaseName, junit_outcomes
from polar.runtimes.base import Command, Finished, Runtime
from polar.runtimes.files.folders import remove_tree
from polar.runtimes.host.threads import in_thread, to_the_end

GUARD = Path(__file__).with_name("python_guard.py")
ROOM_BYTES = 64 * 2**20
"""For notes and reports."""

RUN = """room=$1 keep=$2 reports=$3; shift 3
mkdir -p "$room/notes" "$room/parts"; pwd -P >"$room/workspace"
export PYTHONPATH="$room${PYTHONPATH:+:$PYTHONPATH}"
if [ -n "$reports" ]; then
    export PYTEST_ADDOPTS="${PYTEST_ADDOPTS:+$PYTEST_ADDOPTS }--junitxml=$room/notes/report.xml"
fi
"$@" >"$room/whole"; code=$?
for part in "$room"/parts/*; do
    [ ! -f "$part" ] || { tail -c "$keep" "$part" >"$room/cut" && mv -f "$room/cut" "$part"; }
done
tail -c "$keep" "$room/whole" >"$room/output"; rm -f "$room/whole"; cat "$room/output"; exit "$code"
"""
"""Runs its arguments. Their output goes to a file, because a pipe would wait for any server that the tests leave
running, and a runtime returns only the end of it."""


class Testimony(msgspec.Struct, frozen=True):
    finished: Finished
    output: str
    is_intact: bool = False
    """Whether the folder is as the node made it, with its notes."""
    workspace: str = "/"
    """Its path without links, as processes inside see it."""
    processes: tuple[PythonProcess, ...] = ()
    reports: tuple[dict[CaseName, str], ...] = ()
    """Of each pytest, the outcome of each test case."""
    parts: dict[str, str] = {}
    """What the command wrote to the folder `Witness.parts`, by name: the end of each file."""


class Witness:
    """Runs one command in the evaluator's own runtime."""

    def __init__(self, runtime: Runtime, folder: Path | None, keep_bytes: int) -> None:
        self._runtime = runtime
        self._folder = folder
        self._keep_bytes = keep_bytes
        self._name = f".polar-{secrets.token_hex(16)}"

    @property
    def parts(self) -> str:
        """A folder for output that the command keeps apart, as processes inside see it."""
        return f"{self._runtime.home}/{self._name}/parts"

    async def put(self, name: str, content: bytes) -> str:
        """Writes a file beside the notes. Returns its path inside."""
        await self._runtime.put(f"{self._name}/{name}", content, home=True)
        return f"{self._runtime.home}/{self._name}/{name}"

    async def run(self, argv: tuple[str, ...], env: dict[str, str], *, reports: bool) -> Testimony:
        await self._runtime.put(f"{self._name}/sitecustomize.py", GUARD.read_bytes(), home=True)
        room = f"{self._runtime.home}/{self._name}"
        script = ("sh", "-c", RUN, "sh", room, str(self._keep_bytes), "reports" if reports else "")
        finished = await self._runtime.exec(Command((*script, *argv), env, log_name="evaluator"))
        return await self.testimony(finished)

    async def testimony(self, finished: Finished) -> Testimony:
        """Reads the folder, also after a command that was broken off. Ends all processes first."""
        await self._runtime.kill()
        target = Path(tempfile.mkdtemp(prefix="polar-witness-", dir=self._folder))
        try:
            cap_bytes = self._keep_bytes + ROOM_BYTES
            await self._runtime.fetch(self._name, target / "room", cap_bytes=cap_bytes, home=True)
            return await in_thread(_read, target / "room", finished)
        except WorkspaceUnusable:  # the tested code removed or replaced it
            return Testimony(finished, finished.stdout_tail)
        finally:
            await to_the_end(in_thread(remove_tree, target))


def _read(room: Path, finished: Finished) -> Testimony:
    guard, output, workspace = room / "sitecustomize.py", room / "output", room / "workspace"
    if not (workspace.is_file() and guard.is_file() and guard.read_bytes() == GUARD.read_bytes()):
        return Testimony(finished, finished.stdout_tail, parts=_parts(room))
    notes = sorted((room / "notes").glob("*"))
    return Testimony(
        finished,
        output.read_text(errors="replace") if output.is_file() else finished.stdout_tail,
        (room / "notes").is_dir(),
        workspace.read_text(errors="replace").removesuffix("\n"),
        tuple(process for path in notes if path.suffix != ".xml" and (process := _process(path)) is not None),
        tuple(junit_outcomes(path) for path in notes if path.suffix == ".xml"),
        _parts(room),
    )


def _parts(room: Path) -> dict[str, str]:
    return {path.name: path.read_text(errors="replace") for path in (room / "parts").glob("*") if path.is_file()}


def _process(path: Path) -> PythonProcess | None:
    first, *rest = [tuple(line.split("\t")) for line in path.read_text(errors="replace").splitlines()] or [("",)]
    if first[0] != "began" or len(first) < 4:
        return None
    _, pid, is_first, main, *words = first
    return PythonProcess(pid, bool(is_first), main, tuple(words), tuple(rest))
