"""One section of `polar top` on the screen: its title, and a table whose chosen row stays chosen."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import DataTable, Static

from polar.cli.top.fitting import cut, fitted
from polar.cli.top.sections import Row, Section, SectionName, Tone

STYLES: dict[Tone, Style] = {
    "": Style.null(),
    "bad": Style(color="red", bold=True),
    "warn": Style(color="yellow"),
}


class LinesTable(DataTable[Text]):
    """A table of one column, whose lines are laid out already. Left and right belong to the app."""

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self) -> None:
        super().__init__(
            cursor_type="row", cell_padding=0, show_row_labels=False, cursor_foreground_priority="renderable"
        )


class SectionPane(Vertical):
    def __init__(self, name: SectionName) -> None:
        super().__init__(id=name)
        self.section = Section(name, name, ("",), ())
        self._title = Static(id=f"{name}-title", classes="title")
        self.table = LinesTable()
        self._shown: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield self._title
        yield self.table

    @property
    def chosen(self) -> Row | None:
        index = self.table.cursor_row
        return self.section.rows[index] if 0 <= index < len(self.section.rows) else None

    def show(self, section: Section, width: int, lines: int) -> None:
        """`lines`: of the table, with its header. 0: the title alone."""
        front = self.table.has_focus
        shown = (section, width, lines, front)
        if shown == self._shown:
            return
        chosen, self._shown = self.chosen, shown
        self.section = section
        self._title.update(
            Text(cut(f"{'▶' if front else ' '} {section.title}", width), Style(bold=True, reverse=front))
        )
        self.styles.height = lines + 1
        self.table.display = lines > 0
        self.table.styles.height = lines
        self._fill(section, width)
        self._choose(chosen)

    def _fill(self, section: Section, width: int) -> None:
        table = fitted(section, width - 2)
        self.table.clear(columns=True)
        self.table.add_column(Text(f"  {table.header}", Style(underline=True)), width=width)
        for row, line in zip(section.rows, table.lines, strict=True):
            self.table.add_row(Text(f"  {line}", STYLES[row.tone], no_wrap=True))
        if not section.rows:
            self.table.add_row(Text(cut(f"  {section.empty}", width), Style(dim=True)))

    def _choose(self, before: Row | None) -> None:
        """The row of the same key. The newest line of a log stays chosen."""
        if before is None or self.section.name == "log":
            return
        for index, row in enumerate(self.section.rows):
            if row.key == before.key:
                self.table.move_cursor(row=index, animate=False)
                return
