"""One real harness through a real node, with an engine that follows a script: a tool loop of two turns.

The engine checks every prompt it is sent and splits its tokens as no tokenizer would, so a turn that was rendered
again instead of continued is refused on the spot.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polar.config import Config
from polar.data.source import TaskFileSource
from polar.engines.base import EngineInfo, GenerateRequest, Piece
from polar.errors import EngineBusy, EngineError
from polar.node import open_node
from polar.store.paths import RunPaths, SessionPaths
from polar.testing import ScriptedEngine, Turn
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Call, Keep, SessionResult, Spec, TaskRequest, TokenIds, Trajectory

CONTEXT_TOKENS = 131_072
INSTRUCTION = "Write the word hello into the file answer.txt."
MARK = "written-by-the-tool"
"""Stands in the command and in what it prints, and nowhere else: a prompt that holds it has seen the tool run."""
COMMAND = f"echo hello > answer.txt && echo {MARK}"
ANSWER = "The file answer.txt now says hello."
SHELL_TOOLS = {
    "codex": ("exec_command", "cmd"),
    "claude_code": ("Bash", "command"),
    "gemini_cli": ("run_shell_command", "command"),
    "qwen_code": ("run_shell_command", "command"),
    "opencode": ("bash", "command"),
    "pi": ("bash", "command"),
}
"""What each harness calls its shell, and the argument that takes the command."""
FURTHER_ARGUMENTS = {"opencode": {"description": "Writes hello"}, "gemini_cli": {"description": "Writes hello"}}


@dataclass
class Outcome:
    result: SessionResult
    trajectory: Trajectory
    calls: list[Call]
    engine: FaultyEngine
    words: str
    """What the harness printed."""
    files: SessionPaths

    @property
    def kinds(self) -> list[str]:
        return [call.kind for call in self.calls]


class FaultyEngine(ScriptedEngine):
    """Fails the chosen generations in the chosen way: `error` at once, `busy`, `cut` after the
    first tokens; `slow` and `pause`, once after the first tokens, do not fail.

    The files `begun` and `ended` come into being with the first tokens and at the end of such a generation."""

    def __init__(self, *arguments: Any, folder: Path, faults: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.folder = folder
        self.faults = list(faults)
        self.failed: list[str] = []

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        fault = self.faults.pop(0) if self.faults and self._is_main(request) else ""
        if fault:
            self.failed.append(fault)
        if fault == "error":
            raise EngineError("out of memory")
        if fault == "busy":
            raise EngineBusy("too many sequences", retry_after_s=1.0)
        try:
            async for piece in super().generate(request):
                yield piece
                if fault:
                    (self.folder / "begun").touch()
                if fault == "cut":
                    await asyncio.sleep(0.5)  # the reply has begun, and its first words are out
                    raise EngineError("the worker died")
                if fault in ("slow", "pause"):
                    await asyncio.sleep(0.5)
                if fault == "pause":
                    fault = "paused"
        finally:
            if fault:
                (self.folder / "ended").touch()

    def _is_main(self, request: GenerateRequest) -> bool:
        return len(request.prompt_ids) > 300  # not the title of a conversation


def tool_call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def shell_call(harness: str, command: str) -> str:
    tool, parameter = SHELL_TOOLS[harness]
    return tool_call(tool, {parameter: command, **FURTHER_ARGUMENTS.get(harness, {})})


def last_turn(prompt: str) -> str:
    """The last message of a prompt, its role in front."""
    return prompt.rsplit("<|im_start|>", 2)[-2]


def script_of(harness: str, renderer: SmolLM2Renderer, argument: str = "") -> Callable[[int, TokenIds], str]:
    tool, parameter = SHELL_TOOLS[harness]
    arguments = {argument or parameter: COMMAND, **FURTHER_ARGUMENTS.get(harness, {})}
    spelled = ", ".join(f'"{name}": "{value}"' for name, value in arguments.items())
    call = f'I will write it.\n<tool_call>{{"name": "{tool}", "arguments": {{{spelled}}}}}</tool_call>'

    def reply(_: int, prompt_ids: TokenIds) -> str:
        prompt = renderer.decode(prompt_ids)
        if f"\n{tool}(" not in prompt:
            return "Writing hello"
        return ANSWER if MARK in prompt else call

    return reply


@dataclass
class Loop:
    """Where the sessions run and what became of them."""

    renderer: SmolLM2Renderer
    folder: Path
    route: Callable[[str], Any] | None = None
    """Wraps the gateway's address: an asynchronous context that yields the one the harness is given."""
    script: Callable[[str], Turn] | None = None
    """What the engine says to a prompt; none: the loop of two turns."""
    context_tokens: int = CONTEXT_TOKENS
    instruction: str = INSTRUCTION
    plug_in: str = ""
    """The harness the task names, where it is one of the tests' own around a real one."""
    runtime: Spec = field(default_factory=lambda: Spec(name="local"))
    keep: Keep = field(default_factory=Keep)
    config: Config = field(default_factory=Config)
    samples: int = 1
    """How many sessions the task has; the outcome is that of the first."""
    results: dict[str, SessionResult] = field(default_factory=dict[str, SessionResult])
    trajectories: dict[str, Trajectory] = field(default_factory=dict[str, Trajectory])
    calls: dict[str, list[Call]] = field(default_factory=dict[str, list[Call]])

    async def run(
        self, harness: str, *, faults: Sequence[str] = (), budgets: dict[str, Any] | None = None, **options: Any
    ) -> Outcome:
        task = TaskRequest.model_validate(
            {
                "task_id": harness.replace("_", "-"),
                "instruction": self.instruction,
                "num_samples": self.samples,
                "harness": {"name": self.plug_in or harness, "options": options},
                "runtime": self.runtime,
                "keep": self.keep,
                "evaluator": {
                    "name": "test_on_output",
                    "options": {"command": "cat answer.txt", "expect_pattern": "^hello$"},
                },
                "budgets": {"run_s": 150.0, "max_calls": 12, **(budgets or {})},
            }
        )
        info = EngineInfo("scripted", "script", self.context_tokens, "raw", parallel=8, constrains=True)
        vocabulary = self.renderer._vocabulary  # pyright: ignore[reportPrivateUsage]
        script = self._script_of(harness)
        engine = FaultyEngine(vocabulary, script, info=info, faults=faults, folder=self.folder)
        paths = RunPaths.create(self.folder)
        async with AsyncExitStack() as stack:
            node = await stack.enter_async_context(
                open_node(self.config, paths, engine=engine, renderer=self.renderer)
            )
            if self.route is not None:
                node.slots.base_url = await stack.enter_async_context(self.route(node.slots.base_url))
            await node.serve(TaskFileSource([task], self._keep))
            session_id = task.session_id(0)
            calls = await node.journal.calls(session_id)
            for index in range(self.samples):
                other = task.session_id(index)
                self.calls[other] = await node.journal.calls(other)
        files = paths.session(session_id)
        log = files.logs / "harness.stdout"  # there is none of a harness that prints nothing
        printed = log.read_text(errors="replace") if log.exists() else ""
        return Outcome(self.results[session_id], self.trajectories[session_id], calls, engine, printed, files)

    def _script_of(self, harness: str) -> Callable[[int, TokenIds], Turn]:
        script = self.script
        if script is None:
            return script_of(harness, self.renderer)
        return lambda _, prompt_ids: script(self.renderer.decode(prompt_ids))

    async def _keep(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        self.results[result.session_id] = result
        if trajectory is not None:
            self.trajectories[result.session_id] = trajectory
