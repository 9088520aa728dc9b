"""Unmodified command-line agents, each started as its own documentation says: an API key in the environment, and
no base URL, certificate or settings file."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from polar.harnesses.base import HarnessContext, Launch
from polar.harnesses.claude_code import ClaudeCode, ClaudeCodeOptions
from polar.harnesses.codex import Codex, CodexOptions
from polar.harnesses.gemini_cli import GeminiCli, GeminiCliOptions
from polar.harnesses.pi import Pi, PiOptions

KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "google": "GEMINI_API_KEY"}
MODELS = {"openai": "gpt-4o", "anthropic": "claude-sonnet-4-5", "google": "gemini-2.5-pro"}


class DefaultUrlPiOptions(PiOptions):
    provider: Literal["openai", "anthropic", "google"] = "openai"
    own_key: str = ""
    """In place of the session's."""


class DefaultUrlPi(Pi):
    Options: type[BaseModel] = DefaultUrlPiOptions
    _options: DefaultUrlPiOptions

    def launch(self, context: HarnessContext) -> Launch:
        provider = self._options.provider
        flags = ("-p", "--provider", provider, "--model", MODELS[provider], "--offline")
        env = {KEYS[provider]: self._options.own_key or context.slot.key}
        return Launch((*self.program(context.installed), *flags, "--", context.instruction), env)


class DefaultUrlClaudeCode(ClaudeCode):
    Options: type[BaseModel] = ClaudeCodeOptions

    def launch(self, context: HarnessContext) -> Launch:
        program = self.program(context.installed)
        env = {"ANTHROPIC_API_KEY": context.slot.key, "IS_SANDBOX": "1"}
        return Launch((*program, "-p", "--dangerously-skip-permissions", "--", context.instruction), env)


class DefaultUrlCodex(Codex):
    Options: type[BaseModel] = CodexOptions

    def launch(self, context: HarnessContext) -> Launch:
        flags = ("exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", "-m", "gpt-5")
        env = {"CODEX_API_KEY": context.slot.key}
        return Launch((*self.program(context.installed), *flags, "--", context.instruction), env)


class DefaultUrlGeminiCli(GeminiCli):
    Options: type[BaseModel] = GeminiCliOptions

    def launch(self, context: HarnessContext) -> Launch:
        flags = ("-m", "gemini-2.5-pro", "--yolo", "--skip-trust", "-p", context.instruction)
        return Launch((*self.program(context.installed), *flags), {"GEMINI_API_KEY": context.slot.key})
