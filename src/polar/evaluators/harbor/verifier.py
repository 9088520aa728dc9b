"""Runs a Harbor verifier, and copies what it left to the node.

Tests and logs are in a folder with a random name in the runtime's home, made after the agent is dead. Where the
runtime has a root of its own, `/tests` and `/logs` are links to them. Elsewhere the verifier finds them by the
variables TESTS_DIR and LOGS_DIR, which are set everywhere. When the verifier has ended, its log folder is moved
away: what the tested code left running finds a new one and shows itself by changing the reward there.
"""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

import msgspec

from polar.errors import EvaluatorError
from polar.evaluators.harbor.verifier_files import SCRIPT, VerifierFiles
from polar.evaluators.hardening.witness import Testimony, Witness
from polar.runtimes.base import Command, Fetched, Runtime

KEEP_OUTPUT_BYTES = 1_000_000
MAX_LEFT_BYTES = 256 * 2**20
"""Of tests and logs together."""
MAX_PATH_BYTES = 65536
DECOY = b"decoy\n"
"""The reward in the new log folder."""

SET_UP = """cd "$1" && pwd -P >path && mkdir -p logs/verifier logs/agent logs/artifacts || exit 1
[ -n "$2" ] || exit 0
rm -rf /tests /logs && ln -s "$1/tests" /tests && ln -s "$1/logs" /logs
"""
VERIFY = """room=$1 new=$1/logs/verifier
"$TESTS_DIR/test.sh" </dev/null 2>&1; code=$?
mv "$new" "$room/verdict" && mkdir "$new" && echo decoy >"$new/reward.txt"
sleep 0.2 2>/dev/null || sleep 1
exit "$code"
"""


class VerifierEnd(msgspec.Struct, frozen=True):
    """How a verifier ended, and the copy of what it left."""

    seen: Testimony
    folder: Path
    fetched: Fetched
    real_path: str
    """Of the original, without links, as processes inside saw it."""

    @property
    def verdict(self) -> Path:
        """The log folder as it was when the verifier ended."""
        return self.folder / "verdict"

    @property
    def late(self) -> Path:
        """What was written to the log folder after that."""
        return self.folder / "logs" / "verifier"

    @property
    def tests(self) -> Path:
        return self.folder / "tests"


class Verifier:
    """One run in one runtime."""

    def __init__(self, runtime: Runtime, files: VerifierFiles, *, own_root: bool) -> None:
        self._runtime = runtime
        self._files = files
        self._own_root = own_root
        self._name = f".polar-{secrets.token_hex(16)}"
        self._real_path = ""

    async def set_up(self) -> None:
        for path, file in self._files.sent().items():
            inner = f"{self._name}/tests/{path}"
            await self._runtime.put(inner, file.content, home=True, executable=file.executable)
        links = "links" if self._own_root else ""
        argv = ("sh", "-c", SET_UP, "sh", self._room, links)
        finished = await self._runtime.exec(Command(argv, log_name="set-up"))
        if finished.exit_code != 0:
            raise EvaluatorError(
                f"/tests and /logs cannot be made: {finished.stderr_tail[-500:].strip()}; if the image has a user "
                "other than root, set user = 'root' in [verifier] of task.toml"
            )
        with tempfile.TemporaryDirectory(prefix="polar-") as folder:
            copy = Path(folder, "path")
            await self._runtime.fetch(f"{self._name}/path", copy, cap_bytes=MAX_PATH_BYTES, home=True)
            self._real_path = copy.read_text(errors="replace").removesuffix("\n")

    async def run(self, env: dict[str, str], logs: Path | None) -> Testimony:
        places = ("/tests", "/logs") if self._own_root else (f"{self._room}/tests", f"{self._room}/logs")
        variables = {**env, "TESTS_DIR": places[0], "LOGS_DIR": places[1]}
        witness = Witness(self._runtime, logs, KEEP_OUTPUT_BYTES)
        return await witness.run(("sh", "-c", VERIFY, "sh", self._room), variables, reports=True)

    async def end(self, seen: Testimony, target: Path) -> VerifierEnd:
        """Nothing is alive in the runtime. Raises `WorkspaceUnusable` if the tested code removed the folder."""
        fetched = await self._runtime.fetch(self._name, target, cap_bytes=MAX_LEFT_BYTES, home=True)
        return VerifierEnd(seen, target, fetched, self._real_path)

    @property
    def _room(self) -> str:
        return f"{self._runtime.home}/{self._name}"


NOT_STARTED = (126, 127)
"""The shell's exit codes for a program that cannot be started or is not found."""


def interpreter_problem(exit_code: int) -> str:
    if exit_code not in NOT_STARTED:
        return ""
    return f"{SCRIPT} may not have started (exit code {exit_code}): is the program of its first line in the image?"
