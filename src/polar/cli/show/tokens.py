"""Traces as text, with the trainable tokens marked."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import Literal

from rich.text import Text

from polar.cli.output import console, visible
from polar.dashboard.spelling import Spelling, spelling
from polar.types import Spec, TokenIds, Trace

Role = Literal["context", "trainable", "sampled"]
"""`sampled`: sampled by the engine but not trainable, for instance without a logprob."""

STYLES: dict[Role, str] = {"context": "dim", "trainable": "bold green", "sampled": "yellow underline"}
BRACKETS: dict[Role, tuple[str, str]] = {"context": ("", ""), "trainable": ("⟦", "⟧"), "sampled": ("⟨", "⟩")}
MEANINGS: dict[Role, str] = {
    "context": "context, masked",
    "trainable": "sampled, trainable",
    "sampled": "sampled, dropped: no usable logprob, or not received",
}


def print_traces(renderer: Spec | None, traces: tuple[Trace, ...]) -> None:
    spell = asyncio.run(spelling(renderer))
    out = console()
    coloured = out.color_system is not None and not out.no_color
    out.print()
    out.print(Text("  ").join(_marked(MEANINGS[role], role, coloured=coloured) for role in STYLES))
    for index, trace in enumerate(traces):
        out.print(f"\ntrace {index}: {trace.trainable_tokens} of {len(trace.response_ids)} tokens trainable")
        out.print(_text_of(trace, spell, coloured=coloured), soft_wrap=True)


def runs_of(trace: Trace) -> list[tuple[Role, TokenIds]]:
    """The whole sequence, split where the role of its tokens changes."""
    sampled = {span.start + offset for span in trace.spans for offset in range(span.length)}
    roles: list[Role] = [
        "trainable" if trainable else "sampled" if position in sampled else "context"
        for position, trainable in enumerate(trace.loss_mask)
    ]
    runs: list[tuple[Role, TokenIds]] = [("context", trace.prompt_ids)]
    start = 0
    for role, same in groupby(roles):
        end = start + sum(1 for _ in same)
        runs.append((role, trace.response_ids[start:end]))
        start = end
    return runs


def _text_of(trace: Trace, spell: Spelling, *, coloured: bool) -> Text:
    text = Text()
    for role, ids in runs_of(trace):
        text.append_text(_marked(visible(spell(ids), newline="⏎\n"), role, coloured=coloured))
    return text


def _marked(text: str, role: Role, *, coloured: bool) -> Text:
    """By colour if the terminal has it, else by brackets that occur in no tokenizer."""
    before, after = ("", "") if coloured else BRACKETS[role]
    return Text(f"{before}{text}{after}", style=STYLES[role])
