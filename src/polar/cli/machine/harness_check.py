"""The checks of `polar harness check`: is it installed, in the right version, and does it complete a session.

The session is real, on a node of this machine with a scripted engine. Its tokens are bytes, so it needs no model's
vocabulary.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from polar import registry
from polar.cli.machine.checks import Check
from polar.config import Config
from polar.data.source import TaskFileSource
from polar.engines.base import EngineInfo
from polar.harnesses.base import Harness, NpmPack
from polar.harnesses.programs.install import cached
from polar.node import open_node
from polar.store.paths import RunPaths
from polar.testing import ScriptedEngine
from polar.tokens.base import Renderer
from polar.types import SessionResult, Spec, TaskRequest, Trajectory

CONTEXT_TOKENS = 1_000_000
"""One byte each. The longest first prompt of a harness is about a tenth of it."""
VERSION_TIMEOUT_S = 60.0
VERSION_PATTERN = re.compile(r"\d+(?:\.\d+)+(?:[-+][0-9A-Za-z.+-]+)?|\d+")
BUDGETS = {"init_s": 60.0, "run_s": 180.0, "max_calls": 8}
ANSWER = "Hello."
TURN_BEGINS, TURN_ENDS = "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + (message.content or '') + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def checks_of(name: str, options: dict[str, Any]) -> list[Check]:
    spec = Spec(name=name, options=options)

    def made() -> Harness:
        return registry.make("harness", spec)

    async def installed() -> str:
        return ", ".join(map(str, _folders(name, made()).values())) or "nothing to install"

    async def version() -> str:
        return await printed_version(made(), _folders(name, made()))

    async def session() -> str:
        _folders(name, made())  # a session would fetch what is missing
        return await try_session(spec)

    return [("installed", installed), ("version", version), ("session", session)]


def _folders(name: str, harness: Harness) -> dict[str, Path]:
    found = {pack: cached(pack) for pack in harness.requirements()}
    if missing := [pack for pack, folder in found.items() if folder is None]:
        raise RuntimeError(f"{_spelled(missing)} not in the cache: run `polar harness install {name}`")
    return {pack.package: folder for pack, folder in found.items() if folder is not None}


def _spelled(packs: list[NpmPack]) -> str:
    return ", ".join(f"{pack.package} {pack.version}" for pack in packs)


async def printed_version(harness: Harness, installed: dict[str, Path]) -> str:
    program = harness.program(installed)
    if not program:
        return f"{harness.version}, without a program to ask"
    printed = await _output_of((*program, "--version"))
    if re.match(r"\d", harness.version) and harness.version not in VERSION_PATTERN.findall(printed):
        again = " and ".join(str(folder) for folder in installed.values())
        fix = f"remove {again} and install it again" if again else "set the option `version` to the printed one"
        raise RuntimeError(f"expected version {harness.version}, but it prints {printed!r}: {fix}")
    return printed.partition("\n")[0] or "it prints nothing"


async def _output_of(command: tuple[str, ...]) -> str:
    with tempfile.TemporaryDirectory(prefix="polar-check-") as home:
        env = {"HOME": home, "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        process = await asyncio.create_subprocess_exec(
            *command,
            env=env,
            cwd=home,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(VERSION_TIMEOUT_S):
                printed, errors = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
    if process.returncode != 0:
        message = errors.decode(errors="replace").strip()[-300:]
        raise RuntimeError(f"{' '.join(command)} exited with {process.returncode}: {message}")
    return printed.decode(errors="replace").strip()


async def try_session(spec: Spec) -> str:
    results: list[SessionResult] = []

    async def keep(result: SessionResult, _: Trajectory | None) -> None:
        results.append(result)

    task = TaskRequest.model_validate(
        {"task_id": "check", "instruction": "Say hello.", "harness": spec.model_dump(), "budgets": BUDGETS}
    )
    with tempfile.TemporaryDirectory(prefix="polar-check-") as folder:
        renderer = await bytes_renderer(Path(folder))
        info = EngineInfo("scripted", "script", CONTEXT_TOKENS, "raw", parallel=8, constrains=True)
        engine = ScriptedEngine(byte_tokenizer(), lambda _turn, _prompt: ANSWER, info=info)
        paths = RunPaths.create(Path(folder))
        async with open_node(Config(), paths, engine=engine, renderer=renderer) as node:
            await node.serve(TaskFileSource([task], keep))
    (result,) = results
    if result.failure is not None:
        raise RuntimeError(f"{result.failure.where}: {result.failure.message}")
    if result.ended_by:
        raise RuntimeError(f"it did not end by itself: {result.ended_by}, after {result.statistics.calls} calls")
    return f"{result.statistics.calls} calls, exit code 0 after {result.stage_s.get('RUNNING', 0.0):.1f} s"


def byte_tokenizer() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Any: the package types its lists of tokens only in part.
    tokenizer: Any = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (TURN_BEGINS, TURN_ENDS)])
    return tokenizer


async def bytes_renderer(folder: Path) -> Renderer:
    """For a model whose tokens are bytes; writes its files into `folder`."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    renderer: Renderer = registry.make("renderer", Spec(name="template", options={"tokenizer": str(folder)}))
    await renderer.load()
    return renderer
