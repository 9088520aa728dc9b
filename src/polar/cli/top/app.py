"""`polar top` on the screen: lays the sections out, keeps them current, and acts on keys."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import ClassVar, get_args

from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from polar.cli.output import one_line
from polar.cli.top.feed import Feed, ServiceView, Snapshot
from polar.cli.top.fitting import cut, folded, shared_rows
from polar.cli.top.panes import SectionPane
from polar.cli.top.screens import KEYS, QuestionScreen, TextScreen
from polar.cli.top.sections import SectionName, age, head_lines, sections
from polar.client import DEFAULT_URL, PolarClient, Retry, ServerError

BACK_S = 15.0
"""How long the title says that the server is back."""
HINTS = "q quit  p pause  d drain  c cancel  Tab next table  Enter whole row  ? help"


def run_top(server: str | None) -> None:
    TopApp(PolarClient(server or DEFAULT_URL, retry=Retry(total_s=0))).run()


class TopApp(App[None]):
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    Static { height: auto; }
    #banner, #hints { height: 1; }
    #hints { dock: bottom; }
    DataTable { background: ansi_default; color: ansi_default; scrollbar-size-vertical: 0;
                scrollbar-size-horizontal: 0; overflow-x: hidden; }
    DataTable > .datatable--header { background: ansi_default; color: ansi_default; text-style: none; }
    DataTable > .datatable--cursor { background: ansi_default; color: ansi_default; text-style: none; }
    DataTable:focus > .datatable--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
    DataTable > .datatable--hover, DataTable > .datatable--header-hover { background: ansi_default; }
    ModalScreen { align: center middle; background: transparent; }
    .dialog { width: 78; max-width: 100%; height: auto; max-height: 100%; border: ascii ansi_default;
              padding: 0 1; background: ansi_default; color: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("p", "pause", "pause or resume"),
        Binding("d", "drain", "drain the chosen node"),
        Binding("c", "cancel", "cancel the chosen session"),
        Binding("r", "look", "read the server now"),
        Binding("enter", "details", "show the row", priority=False),
        Binding("right", "app.focus_next", "next table", priority=True),
        Binding("left", "app.focus_previous", "table before", priority=True),
        Binding("question_mark", "help", "help"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, client: PolarClient) -> None:
        super().__init__(ansi_color=True)
        self._client = client
        self._feed = Feed(client, self._receive)
        self._view = ServiceView()
        self._back: tuple[float, float] | None = None
        """When the server came back, and how long it was away."""
        self._panes = {name: SectionPane(name) for name in get_args(SectionName)}
        self._banner, self._head = Static(id="banner"), Static(id="head")
        self._hints = Static(id="hints")

    @property
    def snapshot(self) -> Snapshot | None:
        return self._view.snapshot

    def compose(self) -> ComposeResult:
        yield self._banner
        yield self._head
        yield from self._panes.values()
        yield self._hints

    async def on_mount(self) -> None:
        self.title = "polar top"
        await self._client.__aenter__()
        self.run_worker(self._feed.run(), name="feed")
        self.set_interval(1.0, self._draw_banner)
        self._panes["sessions"].table.focus()
        self._draw()

    async def on_unmount(self) -> None:
        await self._client.__aexit__()

    def on_resize(self, _: events.Resize) -> None:
        self._draw()

    def on_descendant_focus(self, _: events.DescendantFocus) -> None:
        self._draw()

    def on_data_table_row_selected(self) -> None:
        self.action_details()

    def _receive(self, view: ServiceView) -> None:
        before, self._view = self._view, view
        now = time.monotonic()
        if before.away_since is not None and view.away_since is None:
            self._back = (now, now - before.away_since)
        self._draw()

    def _draw(self) -> None:
        if not self._head.is_mounted:
            return
        width, height = self.size
        self._draw_banner()
        self._hints.update(Text(cut(HINTS, width), Style(dim=True)))
        if self.snapshot is None:
            return
        head = [line for each in head_lines(self.snapshot.overview) for line in folded(each, width)]
        shown = Text("\n".join(head), no_wrap=True)
        shown.highlight_regex(r"PAUSED|\d+ FAILED", Style(bold=True, reverse=True))
        self._head.update(shown)
        found = sections(self.snapshot)
        front = [self._panes[section.name].table.has_focus for section in found]
        rows = [max(1, len(section.rows)) for section in found]
        lines = shared_rows(height - 2 - len(head), rows, front.index(True) if True in front else 1)
        with self.batch_update():
            for section, share in zip(found, lines, strict=True):
                self._panes[section.name].show(section, width, share)

    def _draw_banner(self) -> None:
        text, loud = self._banner_text()
        line = cut(text, self.size.width)
        self._banner.update(Text(line.ljust(self.size.width) if loud else line, Style(bold=True, reverse=loud)))

    def _banner_text(self) -> tuple[str, bool]:
        """And whether it is printed in reverse."""
        view, now, url = self._view, time.monotonic(), one_line(self._client.url, 60)
        at = "" if view.snapshot is None else _time_of_day(view.snapshot.overview.at)
        if view.away_since is not None:
            kept = f" (below: as of {at})" if at else ""
            return f"SERVER AWAY for {age(now - view.away_since)}{kept}: {one_line(view.why, 200)}", True
        if view.snapshot is None:
            return f"polar top  {url}  connecting", False
        title = f"polar {one_line(view.snapshot.overview.version, 20)}  {url}  {at}"
        if self._back is not None and now - self._back[0] < BACK_S:
            return f"SERVER BACK after {age(self._back[1])}  {title}", False
        return title, False

    def action_look(self) -> None:
        self._feed.refresh()

    def action_help(self) -> None:
        self.push_screen(TextScreen("polar top: keys", KEYS.splitlines()))

    def action_details(self) -> None:
        for pane in self._panes.values():
            if pane.table.has_focus and pane.chosen is not None:
                self.push_screen(TextScreen(pane.section.name, pane.chosen.details.splitlines()))

    def action_pause(self) -> None:
        if self.snapshot is None:
            return
        if self.snapshot.overview.policy.paused:
            self._ask("Resume generation?", "The model calls that wait begin.", self._client.resume, "resumed")
        else:
            consequence = "At all nodes. Sessions stay, and their next model calls wait for a resume."
            self._ask("Pause generation?", consequence, self._client.pause, "paused")

    def action_drain(self) -> None:
        chosen = self._panes["nodes"].chosen
        nodes = () if self.snapshot is None else self.snapshot.overview.nodes
        node = next((node for node in nodes if chosen is not None and node.node_id == chosen.key), None)
        if node is None:
            self._say("no node is chosen", wrong=True)
            return
        name, drain = f"{node.node_id} ({one_line(node.name, 60)})", not node.draining
        question = f"Drain {name}?" if drain else f"Let {name} have sessions again?"
        consequence = (
            f"It gets no more sessions; its {len(node.sessions)} end as usual."
            if drain
            else "It drains at the moment."
        )
        told = f"{name} drains" if drain else f"{name} gets sessions again"
        self._ask(question, consequence, lambda: self._client.drain_node(node.node_id, draining=drain), told)

    def action_cancel(self) -> None:
        chosen = self._panes["sessions"].chosen
        if chosen is None:
            self._say("no session is chosen", wrong=True)
            return
        consequence = "Its node stops it with the next heartbeat; what was captured is kept."
        told = f"{chosen.key} will be cancelled"
        self._ask(f"Cancel {chosen.key}?", consequence, lambda: self._client.cancel_session(chosen.key), told)

    def _ask(self, question: str, consequence: str, work: Callable[[], Awaitable[object]], told: str) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._do(work, told))

        self.push_screen(QuestionScreen(question, consequence), answered)

    async def _do(self, work: Callable[[], Awaitable[object]], told: str) -> None:
        try:
            await work()
        except ServerError as error:
            self._say(str(error), wrong=True)
        else:
            self._say(told)
        self._feed.refresh()

    def _say(self, text: str, *, wrong: bool = False) -> None:
        self.notify(one_line(text, 300), severity="error" if wrong else "information", markup=False)


def _time_of_day(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
