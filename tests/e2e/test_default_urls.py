"""Unmodified agents that talk to their providers' own hosts, in a session that intercepts these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness_loop import ANSWER, MARK, Loop, Outcome, shell_call
from runtime_loop import LOOK, assert_done_inside, need

from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Keep, Spec

pytestmark = pytest.mark.check
PI = "default_url_harnesses:DefaultUrlPi"
KEPT = Keep(artifacts=("answer.txt", "where.txt", "network.txt"), patch=True)


async def loop_of(
    harness: str, plug_in: str, runtime: str, renderer: SmolLM2Renderer, folder: Path, **options: Any
) -> tuple[Spec, Outcome]:
    spec = await need(runtime)
    spec = Spec(name=spec.name, options={**spec.options, "intercept": True})

    def say(prompt: str) -> str:
        return ANSWER if MARK in prompt else shell_call(harness, LOOK)

    loop = Loop(renderer, folder, script=say, runtime=spec, keep=KEPT, plug_in=plug_in)
    return spec, await loop.run(harness, **options)


@pytest.mark.parametrize(
    ("provider", "dialect"),
    [("openai", "openai_responses"), ("anthropic", "anthropic"), ("google", "google")],
)
async def test_pi_with_each_provider(
    provider: str, dialect: str, smollm2: SmolLM2Renderer, tmp_path: Path
) -> None:
    spec, outcome = await loop_of("pi", PI, "bubblewrap", smollm2, tmp_path, provider=provider)
    assert_done_inside(spec, outcome)
    assert {call.dialect for call in outcome.calls} == {dialect}
    assert ANSWER in outcome.words


@pytest.mark.parametrize("runtime", ["docker", "apptainer"])
async def test_pi_in_other_runtimes(runtime: str, smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    assert_done_inside(*await loop_of("pi", PI, runtime, smollm2, tmp_path))


async def test_pi_with_a_key_of_its_own(smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    spec, outcome = await loop_of("pi", PI, "bubblewrap", smollm2, tmp_path, own_key="sk-hard-coded")
    assert_done_inside(spec, outcome)


@pytest.mark.parametrize(
    ("harness", "plug_in"),
    [("claude_code", "DefaultUrlClaudeCode"), ("codex", "DefaultUrlCodex"), ("gemini_cli", "DefaultUrlGeminiCli")],
)
async def test_other_agents(harness: str, plug_in: str, smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    """Programs of three makers: Bun, Rust and Node.js each have TLS of their own."""
    spec, outcome = await loop_of(harness, f"default_url_harnesses:{plug_in}", "bubblewrap", smollm2, tmp_path)
    assert_done_inside(spec, outcome)
