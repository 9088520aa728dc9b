"""One real Claude Code session through Polar and through OpenEnv: rows and tokens that a trainer would get.

The model follows a script of eight replies: it writes a file, reads it, edits it twice, runs commands and says
that it is done. Claude Code changes arguments on the way, as it always does: it adds a default to each edit and
takes white space from the ends of lines. For OpenEnv the engine renders the prompts, here by the renderer of
SmolLM2, from the messages as they arrive, and its parser of tool calls takes the white space before a call from
the text.
"""

from __future__ import annotations

import json
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from bare_harness import context_at, run_bare
from peer_programs import OpenEnvPeer
from stub_replies import CannedReply
from stub_server import StubEngine
from target_process import Process, other_cores

from polar.config import Config
from polar.data.source import TaskFileSource
from polar.harnesses.claude_code import ClaudeCode, ClaudeCodeOptions
from polar.harnesses.programs.install import install
from polar.node.wiring import open_node
from polar.store.paths import RunPaths
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Message, SessionResult, Slot, Spec, TaskRequest, Tool, ToolCall, Trajectory

INSTRUCTION = "Write calc.py with a function that adds two numbers, then document it."
CODE = "def add(a, b):  \n    return a + b\n"


def _call(said: str, name: str, **arguments: Any) -> str:
    return f"{said}\n<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


REPLIES = (
    _call("I write the file.", "Write", file_path="calc.py", content=CODE),
    _call("I look at it.", "Read", file_path="calc.py"),
    _call("Now the name.", "Edit", file_path="calc.py", old_string="def add(a, b):", new_string="def plus(a, b):"),
    _call("Does it run?", "Bash", command="python3 -c 'import calc; print(calc.plus(1, 2))'"),
    _call("A comment.", "Edit", file_path="calc.py", old_string="return", new_string="# the sum\n    return"),
    _call("I look again.", "Read", file_path="calc.py"),
    _call("And once more.", "Bash", command="cat calc.py", description="Show the file"),
    "The file calc.py has a function plus, with a comment.",
)


@dataclass(frozen=True)
class SessionRows:
    """What one session left to train on."""

    peer: str
    calls: int
    rows: int
    tokens: int
    """In all rows, contexts included."""
    trained: int
    sampled: int


class RenderedPrompts:
    """The prompt of a chat request, rendered anew for each call, as an engine does."""

    async def load(self) -> None:
        self._renderer = SmolLM2Renderer(SmolLM2Renderer.Options())
        await self._renderer.load()

    def __call__(self, body: bytes, reply: CannedReply) -> list[int]:
        data = orjson.loads(body)
        tools = [
            Tool(tool["function"]["name"], tool["function"].get("description", ""), tool["function"]["parameters"])
            for tool in data.get("tools") or ()
        ]
        return self._renderer.render([_message(item) for item in data["messages"]], tools).tolist()


def _message(item: dict[str, Any]) -> Message:
    calls = [call["function"] for call in item.get("tool_calls") or ()]
    content = item.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text", "") for part in content)
    return Message(
        role="system" if item["role"] == "developer" else item["role"],
        content=content,
        tool_calls=tuple(ToolCall(call["name"], call["arguments"]) for call in calls),
    )


class PolarSession:
    """In a process of its own: a node that runs the session."""

    def __init__(self, folder: Path, engine_url: str) -> None:
        self._folder = folder
        self._engine_url = engine_url

    async def start(self, stack: AsyncExitStack) -> str:
        return ""

    def read(self) -> dict[str, float]:
        return {}

    async def run(self) -> SessionRows:
        found: list[tuple[SessionResult, Trajectory | None]] = []

        async def keep(result: SessionResult, trajectory: Trajectory | None) -> None:
            found.append((result, trajectory))

        task = TaskRequest(task_id=secrets.token_hex(4), instruction=INSTRUCTION, harness=Spec(name="claude_code"))
        config = Config(engine=Spec(name="vllm", options={"url": self._engine_url}))
        async with open_node(config, RunPaths.create(self._folder)) as node:
            await node.serve(TaskFileSource([task], keep))
        result, trajectory = found[0]
        traces = trajectory.traces if trajectory else ()
        if result.failure is not None:
            raise SystemExit(f"Claude Code through Polar: {result.failure}")
        told = result.statistics
        tokens = sum(len(trace.prompt_ids) + len(trace.response_ids) for trace in traces)
        return SessionRows("Polar", told.calls, told.traces, tokens, told.trainable_tokens, told.sampled_tokens)


async def openenv_session(folder: Path, engine_url: str) -> SessionRows:
    harness = ClaudeCode(ClaudeCodeOptions())
    installed = await install(harness.requirements())
    peer = OpenEnvPeer(folder, engine_url)
    try:
        session_id = peer.post("/sessions", {})["session_id"]
        slot = Slot(base_url=peer.url, key=session_id, model="polar", context_tokens=131_071)
        place = folder / "claude"
        if wrong := await run_bare(harness, place, context_at(place, slot, INSTRUCTION, installed)):
            raise SystemExit(f"Claude Code through OpenEnv: {wrong}")
        rollout = peer.get(f"/sessions/{session_id}/rollout")
    finally:
        peer.stop()
    rows = [row for row in rollout["sequences"] if row["trainable"]]
    return SessionRows(
        "OpenEnv",
        calls=len(rollout["turns"]),
        rows=len(rows),
        tokens=sum(len(row["input_ids"]) for row in rows),
        trained=sum(row["n_trainable"] for row in rows),
        sampled=sum(turn["n_sampled"] for turn in rollout["turns"]),
    )


async def polar_session(folder: Path, engine_url: str) -> SessionRows:
    node = Process(PolarSession, folder, engine_url)
    try:
        return node.ask("run")
    finally:
        node.stop()


async def claude_code_rows(folder: Path) -> list[SessionRows]:
    """Each with a stub of its own, which counts the calls of the session."""
    found: list[SessionRows] = []
    for run in (polar_session, openenv_session):
        place = folder / run.__name__
        place.mkdir()
        stub = Process(StubEngine, REPLIES, prompt_ids=RenderedPrompts(), cores=other_cores())
        try:
            found.append(await run(place, stub.url))
        finally:
            stub.stop()
    return found
