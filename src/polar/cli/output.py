"""Output of the commands: tables for people, JSON for programs, one red line for an error.

Text that a model or a harness wrote goes through `visible` before it is printed: it may contain escape sequences.
"""

from __future__ import annotations

import os
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.text import Text

PIPED_WIDTH = 200
"""Columns where stdout is no terminal: wide enough that no cell is cut."""


def console() -> Console:
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    width = PIPED_WIDTH if piped else None
    return Console(markup=False, highlight=False, emoji=False, width=width)


def error_console(*, quiet: bool = False) -> Console:
    """On stderr, for progress: stdout holds only the outcome."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, quiet=quiet)


def progress_bar(out: Console) -> Progress:
    """Removed from the terminal when it stops."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=out, transient=True)


def print_json(value: Any) -> None:
    import orjson

    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def print_error(message: str) -> None:
    typer.secho(f"polar: {message}", fg=typer.colors.RED, err=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, title: str = "") -> None:
    """Columns whose name begins with `#` hold numbers and are aligned to the right."""
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column.startswith("#")
        table.add_column(column.removeprefix("#"), justify="right" if right else "left", no_wrap=right)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def visible(text: str, newline: str = "\n") -> str:
    """`text` with every control and invisible character replaced by a visible form."""
    return "".join(_visible_character(character, newline) for character in text)


def _visible_character(character: str, newline: str) -> str:
    if character == "\n":
        return newline
    if unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)  # Unicode has a picture for each
    return f"\\u{code:04x}"


def one_line(text: str, limit: int = 100) -> str:
    flat = visible(" ".join(text.split()))
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def number(value: float | None, digits: int = 3) -> str:
    """A value for a table cell; `-` for None."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.{digits}f}"


def counted(reasons: Mapping[str, int]) -> str:
    """Reasons with their numbers, as `not_received 2, no_logprob 1`."""
    return ", ".join(f"{visible(reason)} {count}" for reason, count in reasons.items())


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
