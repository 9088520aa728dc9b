"""What harnesses from npm packages share: their options, the choice of program, skills and MCP servers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, get_args

from pydantic import Field, field_validator, model_validator

from polar.harnesses.base import NpmPack
from polar.harnesses.programs.compiled import CACHE_VARIABLE, SUFFIX
from polar.harnesses.programs.native import node_pack, node_program
from polar.types import Slot, Strict

Api = Literal["openai-completions", "openai-responses", "anthropic-messages", "google-generative-ai"]
ALL_APIS: tuple[Api, ...] = get_args(Api)
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=63)]
"""Of an MCP server or a skill: what all harnesses accept."""
FRONT_MATTER = re.compile(r"---\r?\n(.*?\n)---\s*$", re.DOTALL | re.MULTILINE)
MOST_REPLY_TOKENS = 32_000
MCP_START_MS = 60_000
"""How long an MCP server may take to start; the first request waits for it."""


class McpServer(Strict):
    """An MCP server: a program that the harness starts in the runtime, or an address that it can reach from
    there."""

    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    """The program and its arguments; it talks over stdin and stdout."""
    env: dict[str, str] = {}
    url: str | None = Field(default=None, pattern=r"^https?://")
    """Streamable HTTP. Under `gateway_only` only servers inside the runtime can be reached."""
    headers: dict[str, str] = {}

    @model_validator(mode="after")
    def _one_of_both(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either command or url")
        if (self.command is None and self.env) or (self.url is None and self.headers):
            raise ValueError("env goes with command, headers with url")
        return self

    def settings(
        self,
        url: str = "url",
        headers: str = "headers",
        *,
        text: Callable[[str], str] = str,
        value: Callable[[str], str] = str,
    ) -> dict[str, Any]:
        """As most harnesses take it; the names of the two fields of an address differ. `text` escapes the command
        or URL, `value` the values of variables or headers."""
        values = {name: value(each) for name, each in (self.headers | self.env).items()}
        if self.command is None:
            return {url: text(self.url or ""), headers: values}
        program, *arguments = map(text, self.command)
        return {"command": program, "args": arguments, "env": values}


class HarnessOptions(Strict):
    version: str
    """Each harness pins one."""
    program: tuple[str, ...] | None = Field(default=None, min_length=1)
    """A program of the runtime's image that replaces the one that Polar installs; `version` is then only recorded
    in results."""
    mcp_servers: dict[Name, McpServer] = {}
    skills: dict[Name, str] = {}
    """Name to the text of its SKILL.md, which starts with front matter that has name and description."""
    extra_args: tuple[str, ...] = ()

    @field_validator("skills")
    @classmethod
    def _skills_can_be_found(cls, skills: dict[str, str]) -> dict[str, str]:
        """Most harnesses silently ignore a skill that they cannot read."""
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


OptionsT = TypeVar("OptionsT", bound=HarnessOptions)


class PackagedHarness(Generic[OptionsT]):
    apis: tuple[Api, ...] = ALL_APIS

    def __init__(self, options: OptionsT) -> None:
        self._options = options
        self.version = options.version

    def requirements(self) -> tuple[NpmPack, ...]:
        return self._packs() if self._options.program is None else ()

    def program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        return self._installed_program(installed) if self._options.program is None else self._options.program

    def _packs(self) -> tuple[NpmPack, ...]:
        raise NotImplementedError

    def _installed_program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        raise NotImplementedError

    def _mcp_settings(self, settings: Callable[[McpServer], dict[str, Any]]) -> dict[str, Any]:
        """Settings of all MCP servers, by name."""
        return {name: settings(server) for name, server in self._options.mcp_servers.items()}

    def _skill_files(self, folder: str) -> dict[str, str]:
        """Files of the home, by path; each skill has its own folder in `folder`."""
        return {f"{folder}/{name}/SKILL.md": text for name, text in self._options.skills.items()}


class NodejsHarness(PackagedHarness[OptionsT]):
    """A harness written in JavaScript."""

    package: ClassVar[str]
    entry: ClassVar[str]
    """The program's path in the package."""

    def _packs(self) -> tuple[NpmPack, ...]:
        return (node_pack(), NpmPack(self.package, self.version, self.entry))

    def _installed_program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        return (node_program(installed), str(installed[self.package] / self.entry))

    def _compile_cache(self, installed: dict[str, Path]) -> dict[str, str]:
        """Environment by which sessions find the harness's compiled code, which saves a good part of a short
        session. Those in `local` write it themselves, beside the package in the node's cache; a contained one
        gets what the node has made (programs/compiled.py)."""
        if self.package not in installed:  # the task's own program
            return {}
        folder = installed[self.package]
        return {CACHE_VARIABLE: str(folder.with_name(f"{folder.name}{SUFFIX}"))}


def reply_tokens(slot: Slot, wanted: int | None) -> int:
    """The most tokens to ask for in one reply; by default a quarter of the window, at most 32k."""
    return wanted if wanted is not None else min(MOST_REPLY_TOKENS, slot.context_tokens // 4)


def literal_dollars(text: str) -> str:
    """For settings into which a harness puts the values of variables: a dollar is written as the default of a
    variable that is not set."""
    return text.replace("$", "${POLAR_UNSET:-$}")
