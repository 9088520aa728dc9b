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
from typing import TYPE_CHECKING, Any, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

PIPED_WIDTH = 100_000
"""Columns where the output goes to no terminal: nothing is folded or cut."""
WRAPPED_WIDTH = 20
"""Columns that a cell of words needs; longer ones are folded."""
ROWS_AT_ONCE = 200
"""Of a long table."""


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
    optional: Sequence[str] = (),
    widths: Sequence[int] = (),
    header: bool = True,
) -> None:
    """Columns whose name begins with `#` hold numbers and are aligned to the right. `optional`: columns that are
    left out, in this order, while the terminal is too narrow; a line below the table names them. `widths`: the
    least of the first few columns."""
    from rich.table import Table

    out, cells = console(), [list(row) for row in rows]
    left_out = _left_out(columns, cells, optional, out.width)
    shown = [index for index, column in enumerate(columns) if column not in left_out]
    look: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "bold", "show_header": header}
    table = Table(title=title or None, title_justify="left", **look)
    for index in shown:
        name, right = columns[index].removeprefix("#"), columns[index].startswith("#")
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=right or index == 0,  # a name is for copying
            overflow="fold",
            min_width=widths[index] if index < len(widths) else None,
        )
    for row in cells:
        table.add_row(*(row[index] for index in shown))
    _print_unpadded(out, table)
    if left_out:
        names = ", ".join(column.removeprefix("#") for column in left_out)
        out.print(f"(not shown at {out.width} columns: {names})", style="dim")


def _print_unpadded(out: Console, table: Table) -> None:
    """Without spaces at the ends of lines where there is no terminal: programs read them."""
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    out.print("\n".join(line.rstrip() for line in captured.get().splitlines()), soft_wrap=True)


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


def print_long_table(columns: Sequence[str], rows: Callable[[], Iterable[Sequence[str]]]) -> None:
    """A table of any length, printed part by part. `rows` is called twice: the first time for the widths. Those of
    the parts differ only if the terminal is too narrow for all but the last column."""
    from rich.cells import cell_len

    widths = [cell_len(column.removeprefix("#")) for column in columns]
    for row in rows():
        widths = [max(width, cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
    kept = widths[:-1] if sum(widths[:-1]) + 2 * len(widths) + WRAPPED_WIDTH <= console().width else ()
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
