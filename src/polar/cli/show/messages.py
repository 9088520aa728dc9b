"""Messages as text for the screen: who says it, what, and long texts folded.

Everything in a message was written by a model, a harness or a program, so control characters are made visible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.padding import Padding
from rich.text import Text

from polar.cli.output import visible
from polar.types import Message, ToolCall

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {"system": "magenta", "user": "cyan", "assistant": "bold green", "tool": "yellow"}
INDENT = 2


class Fold(NamedTuple):
    """How much of a text is shown."""

    lines: int
    characters: int


FOLDS = {
    "system": Fold(6, 600),
    "user": Fold(20, 2000),
    "tool": Fold(12, 1200),
    "assistant": Fold(60, 6000),
}


def folded(text: str, fold: Fold | None) -> tuple[str, str]:
    """The beginning of a text, and a line about the rest; None: all of it."""
    if fold is None:
        return text, ""
    lines = text.split("\n")
    kept = "\n".join(lines[: fold.lines])
    if len(kept) > fold.characters:
        return kept[: fold.characters], f"… {len(text) - fold.characters} more characters (--full shows them)"
    more = len(lines) - fold.lines
    return kept, f"… {more} more {'line' if more == 1 else 'lines'} (--full shows them)" if more > 0 else ""


def print_message(out: Console, message: Message, *, title: str = "", full: bool = False) -> None:
    """`title`: stands beside the role."""
    role = message.role + (" (error)" if message.is_error else "")
    out.print(Text(f"{role}  {title}".rstrip(), style=STYLES[message.role]), soft_wrap=True)
    fold = None if full else FOLDS[message.role]
    if message.reasoning:
        print_text(out, message.reasoning, fold, style="dim italic", before="[reasoning] ")
    if message.content:
        print_text(out, message.content, fold)
    for call in message.tool_calls:
        print_text(out, _call_text(call), fold, style="bold")
    for image in message.images:
        print_text(out, f"[image {image.url[:60]}{'…' if len(image.url) > 60 else ''}]", None, style="dim")
    if not (message.content or message.reasoning or message.tool_calls or message.images):
        print_text(out, "(empty)", None, style="dim")


def print_text(out: Console, text: str, fold: Fold | None, style: str = "", before: str = "") -> None:
    """Indented. A terminal folds long lines at words; elsewhere each line stays whole."""
    shown, more = folded(text, fold)
    _print_indented(out, Text(before + visible(shown).rstrip("\n"), style=style))
    if more:
        _print_indented(out, Text(more, style="dim"))


def _print_indented(out: Console, text: Text) -> None:
    if out.is_terminal:
        out.print(Padding(text, (0, 0, 0, INDENT)))
        return
    for line in text.plain.split("\n"):
        out.print(f"{' ' * INDENT}{line}".rstrip(), soft_wrap=True)


def _call_text(call: ToolCall) -> str:
    return f"→ {call.name} {call.arguments}"
