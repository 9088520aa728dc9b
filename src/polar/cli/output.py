"""Output of the commands: tables for people, JSON for programs, one red line for an error.

Text that a model or a harness wrote goes through `visible` before it is printed: it may contain escape sequences.
"""

from __future__ import annotations

import os
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.text import Text

PIPED_WIDTH = 100_000
"""Columns where the output goes to no terminal: nothing is folded or cut."""
WRAPPED_WIDTH = 20
"""Columns that a cell of words needs; longer ones are folded."""


def console() -> Console:
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, width=_width(sys.stdout))


def error_console(*, quiet: bool = False) -> Console:
    """On stderr, for progress: stdout holds only the outcome."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, quiet=quiet, width=_width(sys.stderr))


def _width(stream: TextIO) -> int | None:
    """None: that of the terminal, or COLUMNS."""
    return None if stream.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH


def progress_bar(out: Console) -> Progress:
    """Removed from the terminal when it stops, and not shown elsewhere. A field `below` of a task gives the text
    of lines below the bar, which 80 columns do not cut."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class TwoLines(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            yield from super().get_renderables()
            yield from (Text(task.fields["below"]()) for task in self.tasks if "below" in task.fields)

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    return TwoLines(*columns, TimeElapsedColumn(), console=out, transient=True, disable=not out.is_terminal)


def print_json(value: Any) -> None:
    import orjson

    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def print_error(message: str) -> None:
    typer.secho(f"polar: {message}", fg=typer.colors.RED, err=True)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str = "",
    optional: Sequence[str] = (),
) -> None:
    """Columns whose name begins with `#` hold numbers and are aligned to the right. `optional`: columns that are
    left out, in this order, while the terminal is too narrow; a line below the table names them."""
    from rich.table import Table

    out, cells = console(), [list(row) for row in rows]
    left_out = _left_out(columns, cells, optional, out.width)
    shown = [index for index, column in enumerate(columns) if column not in left_out]
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in (columns[index] for index in shown):
        right = column.startswith("#")
        whole = right or column == columns[0]  # a name is for copying
        justify = "right" if right else "left"
        table.add_column(column.removeprefix("#"), justify=justify, no_wrap=whole, overflow="fold")
    for row in cells:
        table.add_row(*(row[index] for index in shown))
    out.print(table)
    if left_out:
        names = ", ".join(column.removeprefix("#") for column in left_out)
        out.print(f"(not shown at {out.width} columns: {names})", style="dim")


def _left_out(
    columns: Sequence[str], rows: Sequence[Sequence[str | Text]], optional: Sequence[str], width: int
) -> list[str]:
    widths: dict[str, int] = {}
    for index, column in enumerate(columns):
        cells = max((len(row[index]) for row in rows), default=0)
        most = cells if column.startswith("#") or index == 0 else min(cells, WRAPPED_WIDTH)
        widths[column] = 2 + max(len(column.removeprefix("#")), most)
    left_out: list[str] = []
    for column in optional:
        if sum(widths.values()) - 2 <= width:
            break
        del widths[column]
        left_out.append(column)
    return left_out


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
