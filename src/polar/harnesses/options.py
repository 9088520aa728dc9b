"""Options that every harness from a package takes: which program, and what it is given beside its own tools."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from polar.types import Strict

Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=63)]
"""Of an MCP server or a skill: what all harnesses take."""
FRONT_MATTER = re.compile(r"---\r?\n(.*?\n)---\s*$", re.DOTALL | re.MULTILINE)


class McpServer(Strict):
    """A server of tools: a program the harness starts in the runtime, or an address it can reach from there."""

    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    """The program and its arguments, spoken to by stdin and stdout."""
    env: dict[str, str] = {}
    url: str | None = Field(default=None, pattern=r"^https?://")
    """Streamable HTTP. Under `gateway_only` only what the runtime itself holds can be reached."""
    headers: dict[str, str] = {}

    @model_validator(mode="after")
    def _one_of_both(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either command or url")
        if (self.command is None and self.env) or (self.url is None and self.headers):
            raise ValueError("env goes with command, headers with url")
        return self


class HarnessOptions(Strict):
    version: str
    """Each harness pins one."""
    program: tuple[str, ...] | None = Field(default=None, min_length=1)
    """A program of the runtime's own image, in place of the one Polar brings along; `version` is then only what
    results record."""
    mcp_servers: dict[Name, McpServer] = {}
    skills: dict[Name, str] = {}
    """Name to the text of its SKILL.md, which begins with front matter that tells name and description."""
    extra_args: tuple[str, ...] = ()

    @field_validator("skills")
    @classmethod
    def _skills_can_be_found(cls, skills: dict[str, str]) -> dict[str, str]:
        """Most harnesses leave a skill out that they cannot read, and say nothing."""
        for name, text in skills.items():
            front = FRONT_MATTER.match(text)
            if front is None:
                raise ValueError(
                    f"skill {name!r} does not begin with front matter: ---, name and description, ---"
                )
            if not re.search(rf"""^name:\s*(["']?){re.escape(name)}\1\s*$""", front[1], re.MULTILINE):
                raise ValueError(f"the front matter of skill {name!r} has no line `name: {name}`")
            if not re.search(r"^description:(\n[ \t]+)*[ \t]*[^\s]", front[1], re.MULTILINE):
                raise ValueError(f"the front matter of skill {name!r} has no description")
        return skills
