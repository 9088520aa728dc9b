"""Plug-ins by name: `"pi"` or `"my.module:Class"` to a class. An evaluator may also be a plain function.

The table below lists every plug-in we ship. A class is imported when it is first used, so a heavy dependency costs
only those who use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from polar.errors import ConfigError, PolarError, UnknownPlugin
from polar.types import Spec, TaskRequest

BUILT_IN: dict[str, dict[str, str]] = {
    "runtime": {
        "apptainer": "polar.runtimes.apptainer.runtime:ApptainerRuntime",
        "bubblewrap": "polar.runtimes.bubblewrap.runtime:BubblewrapRuntime",
        "docker": "polar.runtimes.docker.runtime:DockerRuntime",
        "local": "polar.runtimes.local.runtime:LocalRuntime",
    },
    "harness": {
        "claude_code": "polar.harnesses.claude_code:ClaudeCode",
        "codex": "polar.harnesses.codex:Codex",
        "gemini_cli": "polar.harnesses.gemini_cli:GeminiCli",
        "opencode": "polar.harnesses.opencode:OpenCode",
        "pi": "polar.harnesses.pi:Pi",
        "qwen_code": "polar.harnesses.qwen_code:QwenCode",
        "shell": "polar.harnesses.shell:Shell",
    },
    "builder": {
        "per_request": "polar.builders.per_request:PerRequest",
        "prefix_merging": "polar.builders.prefix_merging:PrefixMerging",
        "tree": "polar.builders.tree:Tree",
    },
    "evaluator": {
        "harbor": "polar.evaluators.harbor.evaluator:HarborEvaluator",
