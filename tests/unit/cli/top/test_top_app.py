"""`polar top` on the screen: one glance, keys that ask first, servers that go and come, names that are hostile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polar.types import NodeStatus, Policy, Stage
from polar.types.service.nodes import Sickness
from polar.types.service.overview import FailureCount, HarnessOutcomes, LogLine
from waiting import until

from .fake_service import AT, FakeService, a_log, a_node, a_session, an_overview
from .top_screen import TopScreen

AT_A_GLANCE = """\
policy step-12, 12 updates: generating  slots 2 busy, 2 free
queued 1 (oldest 1m23s)  running 2  completed 12.3k  failed 3  timed_out 1
1.2k tokens/s sampled  20.1k read  3.2 calls/s  first token 0.31 s  call -
newest 200  12.5 ended/min  groups without contrast 12/40 (30%)  stale 1
  nodes: 1 of 3 well
  node    name       state     slots  sessions  seen  why
  node-2  gpu2:4711  sick          4         0    2s  engine for 1m30s: connect…
  node-3  gpu3:4711  draining      4         2    2s
▶ sessions: 3 open, 1 STUCK
  session  stage      for  node    harness  attempt  note
  sort-1   RUNNING  1m15s  node-1  codex          1  STUCK: RUNNING for 900 s; …
  sort-0   RUNNING  1m15s  node-1  codex          1
  sort-2   QUEUED   1m15s  -       codex          1
  outcomes: newest 200; not trainable: infrastructure 2, no_reward 8
  harness  sessions  trainable  reward  merged  rows/session  calls  run
  codex         120        110   0.410     99%          1.02    0.0  -
  failures: 2 by infrastructure, 9 by the agent
  by              count  where    type           newest session
  INFRASTRUCTURE      2  engine   EngineFailure  sort-9
  log: newest first
  time      level    source     message
  05:12:32  error    gpu1:4711  2 the engine does not answer
q quit  p pause  d drain  c cancel  Tab next table  Enter whole row  ? help"""


async def test_a_terminal_of_80_by_24_shows_the_service_at_a_glance(screen: TopScreen) -> None:
    assert screen.lines[0].startswith("polar 0.1.0  http://127.0.0.1:")
    assert screen.lines[-1] == AT_A_GLANCE.splitlines()[-1]
    assert "\n".join(line for line in screen.lines[1:] if line) == AT_A_GLANCE


async def test_more_room_shows_more(screen: TopScreen) -> None:
    assert "no_reward 8" in screen.text and "  pi  " not in screen.text
    await screen.pilot.resize_terminal(160, 50)
    whole = "connection refused at 127.0.0.1:8000 since the last update"
    for text in (whole, "  pi  ", "draining", "budgets.run_s is 300", "0 registered"):
        await screen.shows(text)


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (20, 5), (200, 60)])
async def test_any_size_is_drawn_within_its_lines(service: FakeService, size: tuple[int, int]) -> None:
    async with TopScreen(await service.start()).open(*size) as screen:
        assert len(screen.lines) == size[1] and max(map(len, screen.lines)) <= size[0]


async def test_tab_and_arrows_go_from_table_to_table_and_back(screen: TopScreen) -> None:
    assert "▶ outcomes" in await screen.press("tab")
    assert "▶ failures" in await screen.press("right")
    assert "▶ log" in await screen.press("right")
    assert "▶ nodes" in await screen.press("tab")
    assert "▶ log" in await screen.press("left")


async def test_the_table_in_front_gets_the_room(screen: TopScreen) -> None:
    shown = await screen.press("shift+tab")
    assert "▶ nodes" in shown and "node-3  gpu3:4711  draining" in shown


async def test_a_row_is_shown_whole(screen: TopScreen) -> None:
    shown = await screen.press("enter")
    assert "budgets.run_s is 300" in shown and "task sort, group sums, sample 0" in shown
    assert "budgets.run_s is 300" not in await screen.press("escape")


async def test_help_lists_the_keys(screen: TopScreen) -> None:
    assert "cancel the chosen session" in await screen.press("question_mark")
    assert "cancel the chosen session" not in await screen.press("escape")


async def test_q_quits(screen: TopScreen) -> None:
    await screen.press("q")
    assert screen.app.return_code == 0


class TestActions:
    async def test_pausing_asks_first(self, screen: TopScreen, service: FakeService) -> None:
        assert "Pause generation?" in await screen.press("p")
        await screen.press("n")
        assert service.did == [] and "generating" in screen.text
        await screen.press("p", "y")
        await screen.shows(": PAUSED")
        assert service.did == ["pause"]

    async def test_what_is_paused_is_resumed(self, service: FakeService) -> None:
        service.overview = an_overview(policy=Policy(paused=True))
        async with TopScreen(await service.start()).open() as screen:
            assert "Resume generation?" in await screen.press("p")
            await screen.press("y")
            await screen.shows(": generating")
        assert service.did == ["resume"]

    async def test_the_chosen_node_is_drained(self, screen: TopScreen, service: FakeService) -> None:
        assert "Drain node-2 (gpu2:4711)?" in await screen.press("d")
        await screen.press("y")
        await until(lambda: service.did)
        assert service.did == ["nodes node-2 drain"]

    async def test_a_draining_node_is_taken_back(self, screen: TopScreen, service: FakeService) -> None:
        await screen.press("shift+tab", "down")
        assert "Let node-3 (gpu3:4711) have sessions again?" in await screen.press("d")
        await screen.press("y")
        await until(lambda: service.did)
        assert service.did == ["nodes node-3 drain undone"]

    async def test_the_chosen_session_is_cancelled_though_rows_move(
        self, screen: TopScreen, service: FakeService
    ) -> None:
        await screen.press("down")  # to sort-0
        service.sessions.insert(0, a_session("another-0"))
        await service.tell()
        await screen.shows("another-0")
        assert "Cancel sort-0?" in await screen.press("c")
        await screen.press("y")
        await until(lambda: service.did)
        assert service.did == ["sessions sort-0 cancel"]

    async def test_enter_is_no_answer(self, screen: TopScreen, service: FakeService) -> None:
        await screen.press("c")
        assert "Cancel sort-1?" in await screen.press("enter")
        assert service.did == []

    async def test_without_a_choice_it_says_so(self, service: FakeService) -> None:
        service.overview, service.sessions = an_overview(nodes=(), stages={}, stuck=()), []
        async with TopScreen(await service.start()).open() as screen:
            assert "no node is registered" in screen.text and "no session is open" in screen.text
            await screen.press("c")
            await screen.shows("no session is chosen")
            await screen.press("d")
            await screen.shows("no node is chosen")
        assert service.did == []

    async def test_a_refusal_is_shown(self, screen: TopScreen, service: FakeService) -> None:
        await screen.press("c")
        service.failing = 409
        await screen.press("y")
        await screen.shows("(409)")


class TestTheServerGoesAndComes:
    async def test_an_event_brings_new_values(self, screen: TopScreen, service: FakeService) -> None:
        service.overview = service.overview.model_copy(update={"policy": Policy(version="step-13")})
        await service.tell()
        await screen.shows("policy step-13")

    async def test_a_restart_is_survived_and_told(self, screen: TopScreen, service: FakeService) -> None:
        await service.stop()
        away = await screen.shows("SERVER AWAY")
        assert "(below: as of 05:12:33)" in away and "policy step-12" in away
        service.overview = an_overview(policy=Policy(version="step-99"))
        await service.start()
        await screen.shows("SERVER BACK after")
        await screen.shows("policy step-99")
        service.overview = an_overview(policy=Policy(version="step-100"))
        await service.tell()
        await screen.shows("policy step-100")

    @pytest.mark.parametrize(("status", "word"), [(500, "(500)"), (401, "(401)")])
    async def test_a_server_that_fails_is_away_too(
        self, screen: TopScreen, service: FakeService, status: int, word: str
    ) -> None:
        service.failing = status
        await service.tell()
        await screen.shows("SERVER AWAY")
        service.failing = None
        await screen.shows("SERVER BACK")


HOSTILE = "[bold red]x[/] [@click=app.quit]y[/]\x1b[2J\x07\r\n\u202e:smile: \ud800"[:-1]


def _hostile_node() -> NodeStatus:
    return a_node(1, name=HOSTILE, sick=Sickness(part="disk", why=HOSTILE, since=AT))


HOSTILE_PLACES: dict[str, Callable[[FakeService], None]] = {
    "version": lambda s: _set(s, version=HOSTILE),
    "policy": lambda s: _set(s, policy=Policy(version=HOSTILE)),
    "node": lambda s: _set(s, nodes=(_hostile_node(),)),
    "harness": lambda s: _set(s, harnesses=(HarnessOutcomes(harness=HOSTILE, sessions=1, trainable=1),)),
    "failure": lambda s: _set(
        s, failures=(FailureCount(where=HOSTILE, type=HOSTILE, agent=True, count=1, session_id="a"),)
    ),
    "log": lambda s: setattr(s, "log", (LogLine(at=AT, level="error", source=HOSTILE, message=HOSTILE),)),
    "session": lambda s: s.sessions.insert(
        0, a_session("sort-1", Stage.RUNNING, harness=HOSTILE, node_id=HOSTILE, runtime=HOSTILE)
    ),
}


def _set(service: FakeService, **changes: object) -> None:
    service.overview = an_overview(**changes)


class TestHostileNames:
    @pytest.mark.parametrize("place", HOSTILE_PLACES)
    async def test_markup_and_escapes_stay_text(self, service: FakeService, place: str) -> None:
        HOSTILE_PLACES[place](service)
        async with TopScreen(await service.start()).open(300, 60) as screen:
            assert "[bold red]x[/]" in screen.text
            assert not {"\x1b", "\x07", "\r", "\u202e"} & set(screen.text)

    async def test_also_in_questions_and_details(self, service: FakeService) -> None:
        HOSTILE_PLACES["node"](service)
        async with TopScreen(await service.start()).open(120, 40) as screen:
            asked = await screen.press("d")
            assert "Drain node-1 ([bold red]x[/]" in asked and "\x1b" not in asked
            await screen.press("y")
            told = await screen.shows("▌ node-1 ([bold red]x[/]")
            assert "\x1b" not in told
            details = await screen.press("shift+tab", "enter")
            assert "[bold red]x[/]" in details and "\x1b" not in details


async def test_a_long_log_keeps_its_newest_line_in_sight(service: FakeService) -> None:
    service.log = a_log(200)
    async with TopScreen(await service.start()).open() as screen:
        assert "199 lost its lease" in screen.text and " 100 " not in screen.text


async def test_without_colour_the_chosen_row_and_table_are_seen(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with TopScreen(await service.start()).open() as screen:
        strips = screen.app.screen._compositor.render_strips()  # type: ignore[attr-defined]
        reversed_lines = [
            strip.text for strip in strips if any(segment.style and segment.style.reverse for segment in strip)
        ]
    assert [line.split()[0] for line in reversed_lines] == ["▶", "sort-1"]
