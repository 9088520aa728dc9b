"""How the sections of `polar top` fit a terminal: columns into its width, tables into its height."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from polar.cli.top.sections import Section

GAP = 2
"""Blanks between columns."""
LAST_WIDTH = 16
"""Of the last column, before an optional one is left out."""


@dataclass(frozen=True)
class FittedTable:
    """A section's table as lines of one width."""

    header: str
    lines: tuple[str, ...]


def fitted(section: Section, width: int) -> FittedTable:
    shown = _shown_columns(section, width)
    widths = _narrowed([_needs(section, index) for index in shown], width)
    last = len(shown) - 1

    def line(cells: Sequence[str]) -> str:
        parts = (
            _cell(cells[index], widths[place], section.columns[index], cut=place == last)
            for place, index in enumerate(shown)
        )
        return cut((" " * GAP).join(parts), width)

    names = [column.removeprefix("#") for column in section.columns]
    return FittedTable(line(names), tuple(line(row.cells) for row in section.rows))


def _needs(section: Section, index: int) -> int:
    cells = [row.cells[index] for row in section.rows]
    return max(cell_len(text) for text in [section.columns[index].removeprefix("#"), *cells])


def _shown_columns(section: Section, width: int) -> list[int]:
    shown = list(range(len(section.columns)))
    for name in section.optional:
        wanted = [_needs(section, index) for index in shown]
        wanted[-1] = min(wanted[-1], LAST_WIDTH)
        if sum(wanted) + GAP * (len(wanted) - 1) <= width:
            break
        shown.remove(section.columns.index(name))
    return shown


def _narrowed(widths: list[int], width: int) -> list[int]:
    """The last column takes what is left. If that is too little, the widest of the others give way."""
    room = width - GAP * (len(widths) - 1)
    while sum(widths[:-1]) > room - min(widths[-1], LAST_WIDTH) and max(widths[:-1], default=0) > 8:
        widths[widths.index(max(widths[:-1]))] -= 1
    return [*widths[:-1], max(0, room - sum(widths[:-1]))]


def _cell(text: str, width: int, column: str, *, cut: bool) -> str:
    if cell_len(text) > width:
        text = f"{set_cell_size(text, max(0, width - 1))}…"
    blanks = " " * (width - cell_len(text))
    if column.startswith("#"):
        return text if cut else blanks + text
    return text + blanks


def cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(0, width - 1))}…"


def folded(line: str, width: int) -> list[str]:
    """A line broken where it has two blanks; what continues is indented."""
    lines: list[str] = []
    for part in filter(None, line.split("  ")):
        joined = f"{lines[-1]}  {part.strip()}" if lines else part.strip()
        if not lines or cell_len(joined) > width:
            lines.append(("  " if lines else "") + part.strip())
        else:
            lines[-1] = joined
    return [cut(each, width) for each in lines]


def shared_rows(height: int, rows: Sequence[int], focused: int) -> list[int]:
    """Lines for the table of each section, its header among them, below a title that each has. The focused section
    comes first and gets half of what is left when each has a row; a section without room shows its title alone."""
    left = height - len(rows)
    given = [0] * len(rows)
    order = [focused, *(index for index in range(len(rows)) if index != focused)]
    for index in order:
        if left >= 2:
            given[index], left = 2, left - 2
    half = min(left // 2, max(0, rows[focused] + 1 - given[focused])) if given[focused] else 0
    given[focused], left = given[focused] + half, left - half
    while left and (open_ := [i for i in order if given[i] and given[i] < rows[i] + 1]):
        for index in open_[:left]:
            given[index], left = given[index] + 1, left - 1
    return given
