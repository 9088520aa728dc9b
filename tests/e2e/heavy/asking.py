"""A session in which the model calls one tool, once, and tells what it has learnt: a colour that only a server of
tools, or a skill, knows."""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mcp_tools
from harness_loop import Loop, Outcome

from polar import registry
from polar.harnesses.base import Harness
from polar.harnesses.programs.install import install
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Spec

QUESTION = "Which colour has the number seven?"
COLOUR = "zebra-blue"
DESCRIPTION = "Tells which number has which colour."
SKILL = f"---\nname: colour-chart\ndescription: {DESCRIPTION}\n---\n\nNumber seven is {COLOUR}.\n"
START_S = 2.0
"""What a server needs to start: a harness that does not wait for it would ask its first question without."""
LOOKS_LIKE_A_VARIABLE = "$HOME ${HOME} {env:HOME} {file:/etc/hostname} !id"
"""What one harness or another would put something in the place of."""
NOTING = """\
#!/bin/sh
%s "$@"
code=$?
cp -r "$HOME" '%s'
exit $code
"""
"""A program in front of a harness's own, which keeps the home as the harness has left it."""


@dataclass
class Asking:
    harness: str
    call: str
    renderer: SmolLM2Renderer
    folder: Path
    instruction: str = QUESTION
    prompts: list[str] = field(default_factory=list[str])

    async def run(self, **options: Any) -> Outcome:
        loop = Loop(self.renderer, self.folder, script=self._reply, instruction=self.instruction)
        return await loop.run(self.harness, **options)

    def _reply(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return f"I shall look.\n{self.call}" if len(self.prompts) == 1 else "That is all."


def assert_learnt(asking: Asking, outcome: Outcome, what: str = COLOUR) -> None:
    result = outcome.result
    assert (result.exit_code, result.failure) == (0, None), result
    first, second = asking.prompts
    assert what not in first and what in second.removeprefix(first)
    assert outcome.kinds == ["agent", "agent"] and outcome.calls[1].continues, outcome.calls[1].break_reason


@asynccontextmanager
async def server(transport: str, word: str = COLOUR) -> AsyncGenerator[dict[str, Any]]:
    """The options of a server that answers with a word, as a `program` or over `http`."""
    if transport == "program":
        env = {"ANSWER": word, "DELAY_S": str(START_S)}
        yield {"command": [sys.executable, mcp_tools.__file__], "env": env}
        return
    async with mcp_tools.over_http(START_S) as url:
        yield {"url": url, "headers": {"x-answer": word}}


async def program_of(harness: str) -> tuple[str, ...]:
    brought: Harness = registry.make("harness", Spec(name=harness))
    return brought.program(await install(brought.requirements()))


async def noting_program(harness: str, folder: Path) -> str:
    """A program as an image may ship one: the harness's own, whose home is kept as `folder/home`."""
    own = folder / "their-own"
    own.write_text(NOTING % (shlex.join(await program_of(harness)), folder / "home"))
    own.chmod(0o755)
    return str(own)


def text_of(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted(folder.rglob("*")) if path.is_file())
