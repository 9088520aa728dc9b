"""The cells of the fidelity table: which there are, what one row says, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fidelity_script import TOOLS

Sampling = Literal["qwen3", "smollm2", "qwen3-scored", "smollm2-embedded", "smollm2-vllm"]
SCRIPTED: tuple[Sampling, ...] = ("qwen3", "smollm2", "qwen3-scored")
FREE: tuple[Sampling, ...] = ("smollm2-embedded", "smollm2-vllm")


@dataclass(frozen=True)
class Cell:
    harness: str
    sampling: Sampling

    @property
    def name(self) -> str:
        return f"{self.harness}/{self.sampling}"

    @property
    def run_id(self) -> str:
        return f"{self.harness}-{self.sampling}".replace("_", "-")

    @property
    def scripted(self) -> bool:
        return self.sampling in SCRIPTED

    @property
    def thinks(self) -> bool:
        """SmolLM2 does not."""
        return self.sampling.startswith("qwen3")


CELLS = (
    *(Cell(harness, sampling) for sampling in SCRIPTED for harness in TOOLS),
    *(Cell("pi", sampling) for sampling in FREE),
)


@dataclass(frozen=True)
class Limits:
    """What |captured - scored| may be, as `polar audit` takes it."""

    mean: float
    max: float
    positions: int = 0
    """Tokens scored of each trace; 0: all."""


FLOAT32 = Limits(1e-3, 0.05)
FOUR_BIT = Limits(0.1, 1.0, positions=24)
"""The embedded engine rounds more, and is asked token by token (docs/audit.md)."""
LIMITS: dict[Sampling, Limits] = {
    "qwen3-scored": FLOAT32,
    "smollm2-vllm": FLOAT32,
    "smollm2-embedded": FOUR_BIT,
}
"""Of the cells in which an engine scores."""

REASONS = {
    "tools_changed": "the call declares other tools than those before it",
    "system_changed": "the first message is another one: a sub-agent, or a question beside the conversation",
    "history_rewritten": "the request begins like an earlier one and then differs: a rewritten history",
    "resampled": "the same request once more",
    "history_edited": "behind the call it goes on from stand assistant turns that nobody sampled",
    "bridge_refused": "the renderer cannot append exactly to the sampled tokens",
    "fork": "two calls go on from the same one; the second has a trace of its own",
}
"""Breaks that a harness causes. The others of docs/design/forest.md are our defects, and explain nothing here."""


@dataclass
class Row:
    """One line of the table."""

    cell: str
    calls: int = 0
    kinds: dict[str, int] = field(default_factory=dict[str, int])
    traces: int = 0
    prompt_tokens: int = 0
    """Of the longest prompt."""
    append_only_pairs: int = 0
    merged_pairs: int = 0
    breaks: dict[str, int] = field(default_factory=dict[str, int])
    tolerated: dict[str, int] = field(default_factory=dict[str, int])
    findings: list[str] = field(default_factory=list[str])
    scored_tokens: int = 0
    mean_gap: float | None = None
    max_gap: float | None = None
    altered_gap: float | None = None
    """The widest when one token of the context is another one: what the measure can see."""
    versions: dict[str, str] = field(default_factory=dict[str, str])
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list[str])
    """The targets it missed."""
