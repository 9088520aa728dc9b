"""Screens above the tables of `polar top`: a question before an action, and a page of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = """\
q          quit
p          pause generation at all nodes, or resume it
d          drain the chosen node; if it drains: take that back
c          cancel the chosen session
Enter      show the whole of the chosen row
Tab, →     next table               Shift+Tab, ←  the one before
↑ ↓        choose a row             PgUp PgDn     faster
r          read the server now
?          this page

p, d and c ask first. d acts on the row that is chosen among the nodes,
c on the one among the sessions, whichever table is in front.

Failures by INFRASTRUCTURE are the service's own and count in no mean;
those by the agent count as reward 0. A group without contrast has equal
rewards and teaches nothing. `merged`: share of calls that continue
another's tokens, among those that could. `rows/session` is 1.00 if each
session became one row.
"""


class QuestionScreen(ModalScreen[bool]):
    """Answered by y or n. Enter answers nothing: it may have been meant for a table."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, question: str, consequence: str) -> None:
        super().__init__()
        self._lines = (question, consequence)

    def compose(self) -> ComposeResult:
        question, consequence = self._lines
        keys = (("y", "bold"), " yes   ", ("n", "bold"), " no")
        with Vertical(classes="dialog"):
            yield Static(Text.assemble((question, "bold"), f"\n\n{consequence}\n\n", *keys), id="question")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class TextScreen(ModalScreen[None]):
    """A page that is closed by most keys and scrolled by arrows."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,question_mark", "close", "close")]

    def __init__(self, title: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._title = title
        self._text = "\n".join(lines)

    def compose(self) -> ComposeResult:
        text = Text.assemble((self._title, "bold"), "\n\n", self._text, "\n\n", ("Esc", "bold"), " closes")
        with VerticalScroll(classes="dialog"):
            yield Static(text, id="page")

    def action_close(self) -> None:
        self.dismiss(None)
