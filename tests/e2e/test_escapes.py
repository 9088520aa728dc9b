"""What a session can do to others: exactly what its runtime does not declare to contain.

A real node runs a victim and an intruder side by side. The intruder knows where everything is, paths, ports and
process ids, and tries.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
from runtime_loop import CONTAINED, need

from polar import registry
from polar.config import Config
from polar.data.source import TaskFileSource
from polar.engines.base import EngineInfo
from polar.node import open_node
from polar.runtimes.options import Containment
from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.testing import ScriptedEngine
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Keep, SessionResult, Spec, TaskRequest, Trajectory
from waiting import hang_limit

CALL_THE_MODEL = r"""
address=${OPENAI_BASE_URL#http://}; address=${address%%/*}
body='{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
exec 3<>"/dev/tcp/${address%:*}/${address#*:}"
printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\n' \
    "$OPENAI_API_KEY" >&3
printf 'Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "${#body}" "$body" >&3
read -r answer <&3; exec 3>&-
case $answer in *" 200 "*) ;; *) echo "the model said: $answer" >&2; exit 9;; esac
"""
TRY = r"""
attempt() { name=$1; shift; if timeout 5 "$@" >/dev/null 2>&1; then echo "$name"; fi >>tried.txt; }
reach() { timeout 5 bash -c "exec 3<>/dev/tcp/$1/$2"; }
export -f reach
: >tried.txt
"""
VICTIM = CALL_THE_MODEL + "echo private > secret.txt; exec sleep 1000"
WHAT: dict[str, Containment] = {
    "read another session's workspace": "files",
    "read another session's home": "files",
    "read a file of the node": "files",
    "write into another session": "files",
    "write beside the run": "files",
    "see a process of the node": "processes",
    "signal a process of the node": "processes",
    "reach a server on the node's loopback": "network",
    "reach a server on all of the node's addresses": "network",
    "reach the gateway's own address": "network",
}


@dataclass
class World:
    """What is there to be broken into."""

    folder: Path
    process: int
    loopback_port: int
    open_port: int

    def script(self, victim: Path, gateway: str) -> str:
        host, port = gateway.removeprefix("http://").split(":")
        tries = {
            "read another session's workspace": f"cat {victim}/work/secret.txt",
            "read another session's home": f"ls {victim}/home",
            "read a file of the node": f"cat {self.folder}/node.txt",
            "write into another session": f"touch {victim}/work/intruder",
            "write beside the run": f"touch {self.folder}/intruder",
            "see a process of the node": "bash -c 'cat /proc/*/cmdline | grep -q 98765[4]'",
            "signal a process of the node": f"bash -c 'kill -0 {self.process}'",
            "reach a server on the node's loopback": f"bash -c 'reach 127.0.0.1 {self.loopback_port}'",
            "reach a server on all of the node's addresses": f"bash -c 'reach {own_address()} {self.open_port}'",
            "reach the gateway's own address": f"bash -c 'reach {host} {port}'",
        }
        assert tries.keys() == WHAT.keys()
        return TRY + "\n".join(f'attempt "{name}" {command}' for name, command in tries.items())


@contextlib.contextmanager
def world(folder: Path) -> Generator[World]:
    (folder / "node.txt").write_text("the node's")
    sleeper = subprocess.Popen(["sleep", "987654"])
    with socket.create_server(("127.0.0.1", 0)) as loopback, socket.create_server(("0.0.0.0", 0)) as everywhere:
        try:
            yield World(folder, sleeper.pid, loopback.getsockname()[1], everywhere.getsockname()[1])
        finally:
            sleeper.kill()
            sleeper.wait()


def own_address() -> str:
    """An address of the node that is not loopback, where it has one. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


def task(name: str, script: str, spec: Spec) -> TaskRequest:
    return TaskRequest(
        task_id=name,
        instruction="Go.",
        runtime=spec,
        harness=Spec(name="shell", options={"argv": ["bash", "-c", script]}),
        keep=Keep(artifacts=("tried.txt",)),
    )


@pytest.mark.parametrize("runtime", ["local", *CONTAINED])
async def test_an_intruder_gets_as_far_as_its_runtime_says(
    runtime: str, smollm2: SmolLM2Renderer, tmp_path: Path
) -> None:
    spec = await need(runtime)
    contains = registry.find("runtime", runtime).Options.capabilities.contains
    results: dict[str, SessionResult] = {}

    async def keep(result: SessionResult, _: Trajectory | None) -> None:
        results[result.task_id] = result

    paths = RunPaths.create(tmp_path / "runs")
    vocabulary = smollm2._vocabulary  # pyright: ignore[reportPrivateUsage]
    engine = ScriptedEngine(vocabulary, ["Hello."], info=EngineInfo("scripted", "script", 8192, "raw", parallel=8))
    with world(tmp_path) as there:
        async with open_node(Config(), paths, engine=engine, renderer=smollm2) as node:
            victims_place = paths.session("victim-0").place
            victim = asyncio.create_task(node.serve(TaskFileSource([task("victim", VICTIM, spec)], keep)))
            await _until_it_has_called(node.journal, "victim-0")
            script = CALL_THE_MODEL + there.script(victims_place, node.slots.base_url)
            await node.serve(TaskFileSource([task("intruder", script, spec)], keep))
            intruder_result = results["intruder"]
            assert not victim.done(), "the victim goes on"
            victim.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await victim

    assert intruder_result.failure is None, (paths.session("intruder-0").logs / "harness.stderr").read_text()
    tried = (paths.session("intruder-0").artifacts / "tried.txt").read_text().splitlines()
    assert set(tried) == {name for name, kind in WHAT.items() if kind not in contains}
    assert (tmp_path / "intruder").exists() is ("files" not in contains)


async def _until_it_has_called(journal: Journal, session_id: str) -> None:
    async with hang_limit():
        while not await journal.calls(session_id):  # noqa: ASYNC110 - it waits for another process
            await asyncio.sleep(0.1)
