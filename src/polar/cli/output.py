"""Output of the commands: tables for people, JSON for programs, one red line for an error.

Text that a model or a harness wrote goes through `visible` before it is printed: it may contain escape sequences.
"""

from __future__ import annotations

import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.text import Text

PIPED_WIDTH = 200
"""Columns where stdout is no terminal: wide enough that no cell is cut."""
ROWS_AT_ONCE = 200
"""Of a long table."""
LAST_COLUMN = 20
"""The least width of its last column."""


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


def print_json_list(name: str, values: Iterable[Any], rest: Mapping[str, Any]) -> None:
    """An object with the list `name`, whose values are printed as they come, and then `rest`."""
    import orjson

    def text(value: Any) -> str:  # JSON has no line ends within a string
        return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode().replace("\n", "\n  ")

    comma = ""
    typer.echo(f'{{\n  "{name}": [', nl=False)
    for value in values:
        typer.echo(f"{comma}\n    " + text(value).replace("\n", "\n  "), nl=False)
        comma = ","
    typer.echo("\n  ]" if comma else "]", nl=False)
    for key, value in rest.items():
        typer.echo(f',\n  "{key}": {text(value)}', nl=False)
    typer.echo("\n}")


def print_error(message: str) -> None:
    typer.secho(f"polar: {message}", fg=typer.colors.RED, err=True)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str = "",
    widths: Sequence[int] = (),
    header: bool = True,
    whole: int = 0,
) -> None:
    """Columns whose name begins with `#` hold numbers and are aligned to the right. `widths`: the least of the
    first few columns. `whole`: so many of the first are never folded."""
    from rich.table import Table

    table = Table(
        title=title or None,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
        show_header=header,
    )
    for place, column in enumerate(columns):
        right = column.startswith("#")
        table.add_column(
            column.removeprefix("#"),
            justify="right" if right else "left",
            no_wrap=right or place < whole,
            min_width=widths[place] if place < len(widths) else None,
        )
    for row in rows:
        table.add_row(*row)
    console().print(table)


def print_long_table(columns: Sequence[str], rows: Callable[[], Iterable[Sequence[str]]]) -> None:
    """A table of any length, printed part by part. `rows` is called twice: the first time for the widths. Those of
    the parts differ only if the terminal is too narrow for all but the last column."""
    from rich.cells import cell_len

    widths = [cell_len(column.removeprefix("#")) for column in columns]
    for row in rows():
        widths = [max(width, cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
    kept = widths[:-1] if sum(widths[:-1]) + 2 * len(widths) + LAST_COLUMN <= console().width else ()
    left, header = iter(rows()), True
    while (part := list(islice(left, ROWS_AT_ONCE))) or header:
        print_table(columns, part, widths=kept, header=header)
        header = False


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
